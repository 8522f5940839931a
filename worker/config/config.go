package config

import "time"

// Config is everything a gpupool process can be told. Field tags document each setting: help (what
// it is, with its unit), zero (what leaving it out means), example.
type Config struct {
	DataDir    string     `yaml:"data_dir" help:"Folder for what this process keeps: databases, keys, boot files. One process per folder." zero:"/var/lib/gpupool for root, else $XDG_DATA_HOME/gpupool or ~/.local/share/gpupool" example:"/srv/gpupool"`
	Durability Durability `yaml:"durability" help:"How hard SQLite files are pushed to the disk, gpupool's and the embedded Temporal's alike. full: what was acknowledged survives a power cut. normal: it survives the death of the process, a power cut may take the last moments; a sixth faster." zero:"full" example:"normal"`
	Roles      []Role     `yaml:"roles" help:"What this process does: api, worker, allocator, pxe." zero:"all of them" example:"[api, allocator]"`
	Regions    []string   `yaml:"regions" help:"Regions whose allocators this process may run. One of those that offer a region runs it, the others stand by." zero:"[default]" example:"[eu-north]"`
	Sites      []string   `yaml:"sites" help:"Sites (provisioning networks) this process reaches: where it talks to BMCs and answers network boots." zero:"[default]" example:"[lulea-1, lulea-2]"`
	Database   Database   `yaml:"database" help:"The record: inventory, jobs, allocations, ledger, events."`
	Temporal   Temporal   `yaml:"temporal" help:"The processes: what happens next, waits, retries, undo."`
	API        API        `yaml:"api" help:"REST API and console."`
	Secrets    Secrets    `yaml:"secrets" help:"Passwords of BMCs and secrets of webhooks, encrypted in the database."`
	BMC        BMC        `yaml:"bmc" help:"The servers' BMCs: which are trusted, how often they are looked at, when their passwords are replaced."`
	Timing     Timing     `yaml:"timing" help:"How long things may take before something else is done about them. Every process of a pool should be given the same."`
	Limits     Limits     `yaml:"limits" help:"How much is done at a time."`
	Queue      Queue      `yaml:"queue" help:"The allocators' policy. Every allocator process of a pool should be given the same; try one on a trace with 'gpupool simulate'."`
	Jobs       Jobs       `yaml:"jobs" help:"Jobs that the servers' own agents run."`
	Clusters   []Cluster  `yaml:"clusters" help:"Slurm and Kubernetes clusters whose connectors this process, as a worker, may run; one of those that offer a cluster runs it. Of each: name, kind (slurm, kubernetes), owner; slurm: url, api_version, token_file or jwt_key_file, user, conf, bin_dir, partition, account, log_dir, container_flag; kubernetes: kubeconfig, context, namespace, image." zero:"none: jobs run on the servers' own agents" example:"[{name: alps, kind: slurm, url: 'https://slurm.example.net:6820', jwt_key_file: /etc/slurm/jwt_hs256.key, partition: gpu, log_dir: /shared/gpupool}]"`
	Webhooks   Webhooks   `yaml:"webhooks" help:"How people's own systems are told of events. Every process of a pool should be given the same."`
	Mail       Mail       `yaml:"mail" help:"The mail server for webhooks whose address is mailto:. Every process of a pool should be given the same."`
	Install    Install    `yaml:"install" help:"How operating systems get onto servers."`
	PXE        PXE        `yaml:"pxe" help:"Network boot: DHCP, TFTP, HTTP."`
	Log        Log        `yaml:"log" help:"The process's log, on standard error."`
}

// Database is where the record is kept.
type Database struct {
	Driver         Driver `yaml:"driver" help:"sqlite (one process) or postgres (any number)." zero:"sqlite" example:"postgres"`
	DSN            string `yaml:"dsn" secret:"true" help:"sqlite: the file's path. postgres: a URL or key=value string." zero:"sqlite: gpupool.db in data_dir; postgres: dsn_file" example:"postgres://gpupool:secret@db.example.net/gpupool?sslmode=verify-full"`
	DSNFile        string `yaml:"dsn_file" help:"File that holds the DSN, to keep a password out of the configuration; read where dsn is empty." zero:"none" example:"/etc/gpupool/database.dsn"`
	MaxConnections int    `yaml:"max_connections" help:"Open PostgreSQL connections of this process, 2 to 500. The sum over processes stays under the server's own limit: 3 api, 4 worker and 2 allocator processes at 20 need 180. SQLite has one writer and isn't affected." zero:"20" example:"40"`
}

// Temporal is where workflows run.
type Temporal struct {
	Mode           Mode          `yaml:"mode" help:"embedded (a server in this process, on its own SQLite file) or external." zero:"embedded" example:"external"`
	Address        string        `yaml:"address" help:"host:port of the frontend. embedded: a loopback address to serve on, for the Temporal command line." zero:"embedded: 127.0.0.1 and any free port; external: 127.0.0.1:7233" example:"temporal.example.net:7233"`
	Namespace      string        `yaml:"namespace" help:"Temporal namespace, registered at start where it is missing." zero:"gpupool" example:"gpupool-eu"`
	Retention      time.Duration `yaml:"retention" help:"How long a closed workflow's history is kept, at least 1h. Used when the namespace is registered." zero:"72h" example:"168h"`
	PayloadKeyFile string        `yaml:"payload_key_file" help:"File with the keys that encrypt what workflows carry; all processes of a pool need the same. Make one with 'gpupool keys payload'." zero:"embedded: payload.keys in data_dir, made at the first start; external: must be set" example:"/etc/gpupool/payload.keys"`
	TLS            ClientTLS     `yaml:"tls" help:"TLS towards an external Temporal."`
}

// ClientTLS is a client's side of TLS. All empty: no TLS, unless Enabled.
type ClientTLS struct {
	Enabled    bool   `yaml:"enabled" help:"Use TLS. Naming a ca, cert or server_name does too." zero:"false" example:"true"`
	CA         string `yaml:"ca" help:"File with the certificate authorities to trust, PEM." zero:"the system's" example:"/etc/gpupool/temporal-ca.pem"`
	Cert       string `yaml:"cert" help:"File with this client's certificate, PEM; with key." zero:"none" example:"/etc/gpupool/temporal.pem"`
	Key        string `yaml:"key" help:"File with this client's private key, PEM; with cert." zero:"none" example:"/etc/gpupool/temporal.key"`
	ServerName string `yaml:"server_name" help:"Name to expect in the server's certificate." zero:"the host of the address" example:"temporal.internal"`
}

// API is the REST API and the console on the same address.
type API struct {
	Listen      string `yaml:"listen" help:"host:port to serve on; an empty host is every address." zero:"127.0.0.1:8080" example:":8443"`
	ExternalURL string `yaml:"external_url" help:"Address by which people and servers' agents reach the API; it goes into boot scripts, webhooks and links." zero:"made from listen; must be set where pxe runs without api" example:"https://gpupool.example.net"`
	TLSCert     string `yaml:"tls_cert" help:"File with the certificate chain, PEM; with tls_key." zero:"no TLS" example:"/etc/gpupool/api.pem"`
	TLSKey      string `yaml:"tls_key" help:"File with the private key, PEM; with tls_cert." zero:"no TLS" example:"/etc/gpupool/api.key"`
}

// Secrets is how passwords are kept.
type Secrets struct {
	KeyFile string `yaml:"key_file" help:"File with the key that encrypts BMC passwords and webhooks' secrets in the database. Lost with it are both: back it up apart from the database." zero:"secrets.keys in data_dir, made at the first start; with postgres: must be set for api and worker, made with 'gpupool keys secrets'" example:"/etc/gpupool/secrets.keys"`
}

// Limits are how much is done at a time.
type Limits struct {
	InstallsPerSite int `yaml:"installs_per_site" help:"Servers of one site that are installed at a time, 1 to 10000; the others wait for their turn. What a boot server with a 25 Gbit/s port feeds with images without anyone starving is about 64." zero:"64" example:"16"`
}

// Jobs is how jobs run that the pool's own agents run (backend node).
type Jobs struct {
	MixedTenants bool `yaml:"mixed_tenants" help:"Let jobs of several tenants run at once on a server that does not keep them apart: its agent is not root, or is told not to. They can read and stop each other's there." zero:"false: such a server is one tenant's at a time" example:"true"`
}

// Install is how operating systems get onto servers.
type Install struct {
	BurnIn      string `yaml:"burn_in" help:"Suite that proves a server before it is let in: quick (minutes), standard (about an hour of load) or soak (hours); timing.burn_in must be longer." zero:"quick" example:"standard"`
	ProfilesDir string `yaml:"profiles_dir" help:"Folder of install profiles of your own, a folder each, beside those that gpupool brings or in the place of one by its name. The api and pxe roles need the same." zero:"none: those that gpupool brings" example:"/etc/gpupool/install"`
}

// PXE is the network boot service of the pxe role.
type PXE struct {
	Mode            PXEMode           `yaml:"mode" help:"off, full (gives addresses), proxy (boot answers beside another DHCP server) or relay (full, for relayed requests only)." zero:"off" example:"full"`
	DHCPListen      string            `yaml:"dhcp_listen" help:"host:port for DHCP; the port is 67 outside tests." zero:":67" example:"10.20.0.2:67"`
	BootListen      string            `yaml:"boot_listen" help:"host:port on which a PXE client asks once more for its boot file (PXE 2.1, the port is 4011), or off." zero:":4011; off in mode relay, whose clients are given a whole answer" example:"10.20.0.2:4011"`
	Interface       string            `yaml:"interface" help:"Network interface to answer on." zero:"any" example:"eth1"`
	TFTPListen      string            `yaml:"tftp_listen" help:"host:port for TFTP." zero:":69" example:"10.20.0.2:69"`
	TFTPPerClient   int               `yaml:"tftp_per_client" help:"Transfers that one address may have at once, 1 to 1000." zero:"8" example:"16"`
	HTTPListen      string            `yaml:"http_listen" help:"host:port for boot scripts and files." zero:":8081" example:"10.20.0.2:80"`
	TLSCert         string            `yaml:"tls_cert" help:"File with the certificate chain for http_listen, PEM; with tls_key. The boot programs must trust its authority." zero:"no TLS" example:"/etc/gpupool/pxe.pem"`
	TLSKey          string            `yaml:"tls_key" help:"File with the private key for http_listen, PEM; with tls_cert." zero:"no TLS" example:"/etc/gpupool/pxe.key"`
	ExternalURL     string            `yaml:"external_url" help:"Address by which booting servers reach http_listen." zero:"http:// (https:// with tls_cert) server_id and the port of http_listen" example:"http://10.20.0.2"`
	ServerID        string            `yaml:"server_id" help:"IPv4 address the service is known by (DHCP option 54); the same on active and standby." zero:"must be set unless mode is off" example:"10.20.0.2"`
	BootDir         string            `yaml:"boot_dir" help:"Folder with boot files: iPXE, kernels, images." zero:"boot in data_dir" example:"/srv/gpupool/boot"`
	Stages          map[string]string `yaml:"stages" help:"The first program that a machine is given, by architecture (bios, ia32, x64, arm32, arm64), as a file of boot_dir." zero:"iPXE's own names; the signed shim with secure_boot" example:"{x64: custom/ipxe.efi}"`
	UserClass       string            `yaml:"user_class" help:"DHCP user class by which an iPXE of your own build says that it needs no second iPXE." zero:"none: only iPXE's own" example:"gpupool"`
	SecureBoot      bool              `yaml:"secure_boot" help:"Give UEFI machines the signed shim first." zero:"false" example:"true"`
	DiscoverUnknown bool              `yaml:"discover_unknown" help:"Record machines the inventory doesn't know, for an operator to accept. They are not answered." zero:"false" example:"true"`
	LeaseTime       time.Duration     `yaml:"lease_time" help:"How long an address is lent to an operating system, 2m to 720h." zero:"1h" example:"12h"`
	BootLeaseTime   time.Duration     `yaml:"boot_lease_time" help:"How long an address is lent to firmware and boot loaders, which don't renew: 30s to lease_time." zero:"10m, or lease_time if that is less" example:"20m"`
	OfferHold       time.Duration     `yaml:"offer_hold" help:"How long an offered address waits for its request, 5s to 10m." zero:"1m" example:"30s"`
	Quarantine      time.Duration     `yaml:"quarantine" help:"How long an address that something else was found at is left alone, 1m to 720h." zero:"1h" example:"12h"`
	NoProbe         bool              `yaml:"no_probe" help:"Offer an address without looking whether something answers at it. Saves up to 400 ms of a first offer, and an address may be given twice." zero:"false" example:"true"`
	IPv6            PXE6              `yaml:"ipv6" help:"Network boot over IPv6 as well (DHCPv6, RFC 5970), in modes full and relay."`
	Subnets         []Subnet          `yaml:"subnets" help:"Networks that addresses are given in (modes full and relay) or answered in (proxy). Of each: cidr, range, relays, interface, router, dns, ntp, domain, mtu." zero:"none" example:"[{cidr: 10.20.0.0/22, range: 10.20.1.0-10.20.3.254, router: 10.20.0.1, dns: [10.20.0.53]}]"`
}

// PXE6 is network boot over IPv6.
type PXE6 struct {
	Address     string    `yaml:"address" help:"IPv6 address of this service that booting servers reach." zero:"must be set with subnets" example:"2001:db8:0:1::2"`
	DHCPListen  string    `yaml:"dhcp_listen" help:"host:port for DHCPv6; the port is 547 outside tests." zero:"[::]:547" example:"'[2001:db8:0:1::2]:547'"`
	TFTPListen  string    `yaml:"tftp_listen" help:"host:port for TFTP over IPv6." zero:"[::]:69" example:"'[2001:db8:0:1::2]:69'"`
	ExternalURL string    `yaml:"external_url" help:"Address by which booting servers reach pxe.http_listen over IPv6." zero:"made from address and the port of http_listen" example:"http://[2001:db8:0:1::2]"`
	Subnets     []Subnet6 `yaml:"subnets" help:"IPv6 networks whose servers are answered. Of each: cidr, interface, dns. Somebody must say by router advertisements that addresses are managed: their router, or advertise." zero:"none: no network boot over IPv6" example:"[{cidr: '2001:db8:0:1::/64'}]"`
	Advertise   bool      `yaml:"advertise" help:"Say by router advertisements of our own that the subnets' addresses come from DHCPv6 (flags M and O), in mode full. It makes this machine no router." zero:"false: the router says so" example:"true"`
}

// Subnet6 is one IPv6 network.
type Subnet6 struct {
	CIDR      string   `yaml:"cidr" help:"The network, IPv6, /16 to /64." zero:"must be set" example:"2001:db8:0:1::/64"`
	Interface string   `yaml:"interface" help:"Interface that it is directly on." zero:"found by the interfaces' addresses" example:"eth1"`
	DNS       []string `yaml:"dns" help:"Name servers." zero:"none" example:"['2001:db8::53']"`
}

// Subnet is one network the DHCP service serves.
type Subnet struct {
	CIDR      string   `yaml:"cidr" help:"The network, IPv4." zero:"must be set" example:"10.20.0.0/22"`
	Range     string   `yaml:"range" help:"First and last address to give, both inside cidr; several with commas." zero:"the whole network but for router, relays, dns, ntp and this machine's own addresses; set it where anything else there has a fixed address" example:"10.20.1.0-10.20.3.254"`
	Relays    []string `yaml:"relays" help:"Addresses (giaddr) of DHCP relays that serve it from outside cidr." zero:"none: relays inside cidr are known by their address" example:"[10.9.0.1]"`
	Interface string   `yaml:"interface" help:"Interface that it is directly on." zero:"found by the interfaces' addresses" example:"eth1"`
	Router    string   `yaml:"router" help:"Default router." zero:"none" example:"10.20.0.1"`
	DNS       []string `yaml:"dns" help:"Name servers." zero:"none" example:"[10.20.0.53]"`
	NTP       []string `yaml:"ntp" help:"Time servers." zero:"none" example:"[10.20.0.123]"`
	Domain    string   `yaml:"domain" help:"DNS domain." zero:"none" example:"lulea.example.net"`
	MTU       int      `yaml:"mtu" help:"Largest packet, bytes, 576 to 65535." zero:"not told" example:"9000"`
}

// Log is what the process says about itself.
type Log struct {
	Level  LogLevel  `yaml:"level" help:"debug, info, warn or error." zero:"info" example:"debug"`
	Format LogFormat `yaml:"format" help:"text, json or auto: text on a terminal, else json." zero:"auto" example:"json"`
}
