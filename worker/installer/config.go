package installer

import (
	"errors"
	"fmt"
	"strings"

	"gpupool/schema"
)

// Config is what the boot script put on the kernel's command line.
type Config struct {
	// UserData is the URL of the attempt's one secret document, which becomes the agent's configuration. Its folder is
	// the attempt's own URL, where reports go.
	UserData string
	// Image is the URL of the manifest of an image for a disk, see Manifest; Live that of a system for memory, see
	// LiveManifest. One of them is there.
	Image, Live string
	// Sanitise says that no system is brought: every disk of the server is made to forget. The order is among the attempt's documents.
	Sanitise bool
	// Disk says which disk is overwritten, see Rule; empty = the only one that can hold the image.
	Disk Rule
	// MAC is the network card that the server booted from; empty = the first that has a link.
	MAC string
}

// ParseCmdline reads a kernel's command line: gpupool.user_data, gpupool.image, gpupool.live or
// gpupool.sanitise=1, gpupool.disk, gpupool.mac.
func ParseCmdline(line string) (Config, error) {
	var c Config
	var errs []error
	for _, word := range strings.Fields(line) {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "gpupool.user_data":
			c.UserData = v
		case "gpupool.image":
			c.Image = v
		case "gpupool.live":
			c.Live = v
		case "gpupool.sanitise":
			c.Sanitise = v == "1"
		case "gpupool.mac":
			c.MAC = strings.ToLower(v)
		case "gpupool.disk":
			var err error
			if c.Disk, err = ParseRule(v); err != nil {
				errs = append(errs, fmt.Errorf("gpupool.disk: %w", err))
			}
		}
	}
	if n := countTrue(c.Image != "", c.Live != "", c.Sanitise); n != 1 {
		errs = append(errs, errors.New("gpupool.image, gpupool.live and gpupool.sanitise: want one of them: an image for a disk, a system for memory, or every disk emptied"))
	}
	for name, v := range map[string]string{"gpupool.user_data": c.UserData, "gpupool.image": c.Image, "gpupool.live": c.Live} {
		if v == "" && name != "gpupool.user_data" {
			continue
		}
		if _, ok := schema.ParseURL(v); !ok {
			errs = append(errs, fmt.Errorf("%s: %q: want a URL of the boot service, as its script gives", name, redact(v)))
		}
	}
	return c, errors.Join(errs...)
}

func countTrue(all ...bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

// Base is the attempt's own URL, without a slash at the end.
func (c Config) Base() string { return c.UserData[:strings.LastIndexByte(c.UserData, '/')] }

// redact takes the attempt's token out of a URL or of an error's text: what is printed is kept by BMCs.
func redact(s string) string {
	i := strings.Index(s, "/b/")
	if i < 0 {
		return s
	}
	rest := s[i+3:]
	j := strings.IndexAny(rest, "/\" ")
	if j < 0 {
		return s[:i+3] + "***"
	}
	return s[:i+3] + "***" + redact(rest[j:])
}
