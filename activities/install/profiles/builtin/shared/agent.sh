#!/bin/sh
# Puts the gpupool agent onto a freshly installed system: sh agent.sh ROOT
# ROOT is where that system is mounted; empty or / is the running one.
set -eu
umask 077
root=${1:-/}
root=${root%/}
base={{sh .Base}}
files={{sh .Files}}

# Quiet: the address holds the attempt's boot token, and an installer keeps what is printed.
fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl -fsS --retry 5 --retry-delay 2 -o "$2" "$1" 2>/dev/null
  else
    wget -q -O "$2" "$1"
  fi
}

mkdir -p "$root/etc/gpupool" "$root/usr/bin" "$root/etc/systemd/system/multi-user.target.wants"
fetch "$files/agent/gpupool-agent-{{.Arch}}" "$root/usr/bin/gpupool-agent" || { echo "gpupool: no agent/gpupool-agent-{{.Arch}} among the boot files" >&2; exit 1; }
chmod 755 "$root/usr/bin/gpupool-agent"
cat >"$root/etc/systemd/system/gpupool-agent.service" <<'UNIT'
[Unit]
Description=gpupool agent
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart=/usr/bin/gpupool-agent
EnvironmentFile=-/etc/gpupool/agent.env
Restart=always
RestartSec=2
RestartPreventExitStatus=78
KillMode=process
Delegate=yes
StateDirectory=gpupool-agent
StateDirectoryMode=0700
LimitNOFILE=65536
LimitMEMLOCK=infinity
OOMScoreAdjust=-500
ProtectHostname=yes
UMask=0077

[Install]
WantedBy=multi-user.target
UNIT
chmod 644 "$root/etc/systemd/system/gpupool-agent.service"
ln -sf /etc/systemd/system/gpupool-agent.service "$root/etc/systemd/system/multi-user.target.wants/gpupool-agent.service"
printf '%s\n' {{sh .Name}} >"$root/etc/hostname"
chmod 644 "$root/etc/hostname"
# Last: it is given out once, and holds the secret that makes this system the server.
fetch "$base/agent.json" "$root/etc/gpupool/agent.json" || { echo "gpupool: agent.json was refused: was this attempt's already fetched?" >&2; exit 1; }
