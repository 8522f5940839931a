package installer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"gpupool/worker/installer"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const gib = 1 << 30

func TestTheDiskIsTheOneThatTheRuleNamesAndNoOther(t *testing.T) {
	t.Parallel()
	boot := installer.Disk{Name: "nvme0n1", Bytes: 480 * gib, Bus: "nvme", Model: "Dell BOSS-N1", Serial: "B1"}
	data := installer.Disk{Name: "nvme1n1", Bytes: 3840 * gib, Bus: "nvme", Model: "PM1743", Serial: "D1"}
	data2 := installer.Disk{Name: "nvme2n1", Bytes: 3840 * gib, Bus: "nvme", Model: "PM1743", Serial: "D2"}
	stick := installer.Disk{Name: "sda", Bytes: 64 * gib, Bus: "scsi", Removable: true}
	tiny := installer.Disk{Name: "sdb", Bytes: gib / 4, Bus: "scsi"}
	all := []installer.Disk{data2, boot, data, stick, tiny}
	for name, c := range map[string]struct {
		rule  string
		disks []installer.Disk
		want  string // a name, or part of the error
	}{
		"the only disk":                     {"", []installer.Disk{boot, stick, tiny}, "nvme0n1"},
		"several and no rule":               {"", all, "error: 3 disks could be the one to install"},
		"several and no rule, how to say":   {"", all, "error: Nothing was written. Say which in the install profile, as gpupool.disk=serial=D2"},
		"by serial":                         {"serial=D1", all, "nvme1n1"},
		"a serial that is not there":        {"serial=D9", all, "error: nvme0n1 (480.0 GiB, Dell BOSS-N1, serial B1): another serial"},
		"by model":                          {"model=*BOSS*", all, "nvme0n1"},
		"by size":                           {"max=1T", all, "nvme0n1"},
		"by bus and size":                   {"bus=nvme,min=1T,smallest", all, "nvme1n1"},
		"the smallest, alike: by serial":    {"model=PM*,smallest", all, "nvme1n1"},
		"the smallest never is a USB stick": {"smallest", all, "nvme0n1"},
		"a named one that is too small":     {"", []installer.Disk{tiny}, "error: smaller than the image's 363 MiB"},
		"no disk at all":                    {"", nil, "error: no disk is there"},
	} {
		rule, err := installer.ParseRule(c.rule)
		must(t, err)
		d, err := rule.Choose(c.disks, 363<<20)
		got := d.Name
		if err != nil {
			got = "error: " + err.Error()
		}
		if want, isErr := strings.CutPrefix(c.want, "error: "); isErr && (err == nil || !strings.Contains(got, want)) || !isErr && got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for _, bad := range []string{"serial", "serial=", "size=3", "bus=usb", "min=-1", "max=1X", "max=99999999T", "model=[", "biggest"} {
		if r, err := installer.ParseRule(bad); err == nil {
			t.Errorf("rule %q was read as %+v", bad, r)
		}
	}
}

func TestTheCommandLineSaysWhatIsInstalled(t *testing.T) {
	t.Parallel()
	c, err := installer.ParseCmdline("console=ttyS0 gpupool.user_data=http://10.1.0.2:8081/b/TOK/user-data gpupool.mac=52:54:00:AA:00:01 gpupool.disk=serial=B1,max=1T gpupool.image=http://10.1.0.2:8081/files/image/x86_64/image.json quiet")
	if err != nil || c.Base() != "http://10.1.0.2:8081/b/TOK" || c.Image != "http://10.1.0.2:8081/files/image/x86_64/image.json" || c.MAC != "52:54:00:aa:00:01" || c.Disk.Serial != "B1" || c.Disk.Max != 1<<40 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{"", "gpupool.user_data=user-data gpupool.image=http://h/i.json", "gpupool.user_data=http://h/b/T/user-data gpupool.image=image.json", "gpupool.user_data=http://h/b/T/user-data gpupool.image=http://h/i.json gpupool.disk=any",
		"gpupool.user_data=http://h/b/T/user-data", "gpupool.user_data=http://h/b/T/user-data gpupool.image=http://h/i.json gpupool.live=http://h/l.json", "gpupool.user_data=http://h/b/T/user-data gpupool.live=/l.json"} {
		if _, err := installer.ParseCmdline(bad); err == nil {
			t.Errorf("command line %q was taken", bad)
		}
	}
	if got := installer.Redact(`Get "http://h/b/SECRET/user-data": refused; http://h/b/OTHER`); strings.Contains(got, "SECRET") || strings.Contains(got, "OTHER") || !strings.Contains(got, "/user-data") {
		t.Errorf("redacted: %s", got)
	}
}

// image is a partitioned disk of 8 MiB with noise in its last partition, as sfdisk makes one.
func image(t *testing.T, dir string) []byte {
	t.Helper()
	if _, err := exec.LookPath("sfdisk"); err != nil {
		t.Skip("sfdisk is not installed (Debian package fdisk)")
	}
	path := filepath.Join(dir, "image")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Truncate(path, 8<<20))
	cmd := exec.Command("sfdisk", "-q", path)
	cmd.Stdin = strings.NewReader("label: gpt\nstart=2048,size=4096,type=uefi\nstart=6144,size=8192,type=linux\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v %s", err, out)
	}
	b, err := os.ReadFile(path)
	must(t, err)
	copy(b, bytes.Repeat([]byte{0xeb}, 440)) // boot code
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b[3<<20 : 5<<20])
	return b
}

func serve(t *testing.T, dir string, content []byte, change func(m map[string]any)) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "os.img.zst"), w.EncodeAll(content, nil), 0o600))
	m := map[string]any{"image": "os.img.zst", "size": len(content), "sha256": fmt.Sprintf("%x", sha256.Sum256(content))}
	if change != nil {
		change(m)
	}
	b, err := json.Marshal(m)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "image.json"), b, 0o600))
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	mux.HandleFunc("POST /b/T/report", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func config(url string) installer.Config {
	return installer.Config{UserData: url + "/b/T/user-data", Image: url + "/files/image.json"}
}

// oldDisk is a file of 64 MiB full of something else, with a table of its own at both ends.
func oldDisk(t *testing.T, dir string) (*os.File, installer.Disk) {
	t.Helper()
	path := filepath.Join(dir, "disk")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("EFI PART of old "), 4<<20), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f, installer.Disk{Name: "disk", Bytes: 64 << 20, Sector: 512}
}

func TestADiskIsWrittenWholeAndItsTableIsTheLargerDisks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := image(t, dir)
	disk, d := oldDisk(t, dir)
	must(t, installer.WriteAndSeal(t.Context(), config(serve(t, dir, content, nil)), disk, d))
	got, err := os.ReadFile(disk.Name())
	must(t, err)
	if !bytes.Equal(got[:440], content[:440]) {
		t.Error("the boot code is another")
	}
	if !bytes.Equal(got[1<<20:7<<20], content[1<<20:7<<20]) {
		t.Error("the partitions hold something else")
	}
	if out, err := exec.Command("sfdisk", "--verify", disk.Name()).CombinedOutput(); err != nil || strings.Contains(string(out), "corrupt") || strings.Contains(string(out), "does not") || strings.Contains(string(out), "not covered") {
		t.Errorf("sfdisk --verify: %v %s", err, out)
	}
	var table struct {
		PartitionTable struct {
			LastLBA    int64
			Partitions []struct{ Start, Size int64 }
		}
	}
	out, err := exec.Command("sfdisk", "--json", disk.Name()).Output()
	must(t, err)
	must(t, json.Unmarshal(out, &table))
	p := table.PartitionTable
	if len(p.Partitions) != 2 || p.Partitions[0].Size != 4096 || p.Partitions[1].Start != 6144 || p.Partitions[1].Start+p.Partitions[1].Size != (p.LastLBA+1)&^7 || p.LastLBA != 64<<11-34 {
		t.Errorf("the table is %s", out)
	}
}

func TestAnInstallThatFailsLeavesADiskThatFirmwarePassesOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(m map[string]any)
		words  string
	}{
		"another checksum":     {func(m map[string]any) { m["sha256"] = strings.Repeat("0", 64) }, "the manifest says 000"},
		"a longer size":        {func(m map[string]any) { m["size"] = 9 << 20 }, "breaks off at byte 8388608 of 9437184"},
		"a shorter size":       {func(m map[string]any) { m["size"] = 6 << 20 }, "more than the 6291456 bytes"},
		"no such partition":    {func(m map[string]any) { m["root_partition"] = 7 }, "no partition 7"},
		"an image not there":   {func(m map[string]any) { m["image"] = "none.zst" }, "404"},
		"what is not an image": {func(m map[string]any) { m["image"] = "image.json" }, "magic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			content := image(t, dir)
			disk, d := oldDisk(t, dir)
			err := installer.WriteAndSeal(t.Context(), config(serve(t, dir, content, c.change)), disk, d)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Fatalf("%v, want %q", err, c.words)
			}
			got, err := os.ReadFile(disk.Name())
			must(t, err)
			if n := len(bytes.Trim(got[:1<<20], "\x00")) + len(bytes.Trim(got[63<<20:], "\x00")); n != 0 {
				t.Errorf("%d bytes of a boot record or of a table are on the disk", n)
			}
		})
	}
	t.Run("a manifest that makes no sense", func(t *testing.T) {
		t.Parallel()
		for field, v := range map[string]any{"size": 12, "sha256": "12", "image": "", "root_partition": -1} {
			dir := t.TempDir()
			disk, d := oldDisk(t, dir)
			before, err := os.ReadFile(disk.Name())
			must(t, err)
			err = installer.WriteAndSeal(t.Context(), config(serve(t, dir, image(t, dir), func(m map[string]any) { m[field] = v })), disk, d)
			after, rerr := os.ReadFile(disk.Name())
			must(t, rerr)
			if err == nil || !strings.Contains(err.Error(), field) || !bytes.Equal(before, after) {
				t.Errorf("%s %v: %v; the disk is untouched: %v", field, v, err, bytes.Equal(before, after))
			}
		}
	})
}

func TestABrokenConnectionIsTakenUpWhereItWas(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	modified := time.Unix(1e9, 0)
	var asked atomic.Int32
	replaced := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 { // half of it
			w.Header().Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:1<<19])
			panic(http.ErrAbortHandler)
		}
		if replaced {
			modified = modified.Add(time.Hour)
		}
		http.ServeContent(w, r, "", modified, bytes.NewReader(content))
	}))
	defer s.Close()
	b, err := installer.ReadAll(t.Context(), s.URL)
	if err != nil || !bytes.Equal(b, content) || asked.Load() != 2 {
		t.Fatalf("%d bytes in %d requests, %v; want %d in 2", len(b), asked.Load(), err, len(content))
	}
	replaced = true
	asked.Store(0)
	if _, err := installer.ReadAll(t.Context(), s.URL); err == nil || !strings.Contains(err.Error(), "was replaced") {
		t.Fatalf("a file that became another in between: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := installer.ReadAll(ctx, s.URL); err == nil {
		t.Fatal("it went on after the end")
	}
}

func TestAnArchiveWritesNothingOutsideTheRoot(t *testing.T) {
	t.Parallel()
	pack := func(headers ...*tar.Header) *tar.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if h.Typeflag == tar.TypeReg {
				h.Size = 5
			}
			must(t, w.WriteHeader(h))
			if h.Typeflag == tar.TypeReg {
				_, err := w.Write([]byte("agent"))
				must(t, err)
			}
		}
		must(t, w.Close())
		return tar.NewReader(&b)
	}
	outside := t.TempDir()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	must(t, root.WriteFile("old", []byte("a longer text than before"), 0o600))
	must(t, installer.Unpack(root, pack(
		&tar.Header{Typeflag: tar.TypeDir, Name: "./usr/bin/", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./usr/bin/gpupool-agent", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeReg, Name: "old", Mode: 0o644},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "etc/wants/agent", Linkname: "../agent"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "../../up", Mode: 0o644},
	)))
	if st, err := os.Stat(filepath.Join(dir, "usr/bin/gpupool-agent")); err != nil || st.Mode().Perm() != 0o755 || st.Size() != 5 {
		t.Errorf("the agent: %v %v", st, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "old")); err != nil || string(b) != "agent" {
		t.Errorf("a file that was there: %q %v", b, err)
	}
	if l, err := os.Readlink(filepath.Join(dir, "etc/wants/agent")); err != nil || l != "../agent" {
		t.Errorf("the link: %q %v", l, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "up")); err != nil {
		t.Errorf("a name that points up is taken as one beneath the root: %v", err)
	}
	err = installer.Unpack(root, pack(
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: outside},
		&tar.Header{Typeflag: tar.TypeReg, Name: "out/file", Mode: 0o644},
	))
	if left, lerr := os.ReadDir(outside); err == nil || lerr != nil || len(left) != 0 {
		t.Errorf("through a link out of the root: %v, %d files there", err, len(left))
	}
	if err := installer.Unpack(root, pack(&tar.Header{Typeflag: tar.TypeBlock, Name: "dev/sda"})); err == nil {
		t.Error("a device file was taken")
	}
}
