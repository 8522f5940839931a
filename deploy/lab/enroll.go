package lab

import (
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
)

// WriteEnrollment writes the lab's servers as the file that `gpupool server enroll -f` takes: what a vendor's delivery
// note is in life.
func WriteEnrollment(w io.Writer, servers []ServerState, region, site string) error {
	type entry struct {
		Name         string   `yaml:"name"`
		Region       string   `yaml:"region"`
		Site         string   `yaml:"site"`
		Rack         string   `yaml:"rack"`
		Unit         int      `yaml:"unit"`
		Serial       string   `yaml:"serial"`
		MACs         []string `yaml:"macs"`
		Arch         string   `yaml:"arch"`
		Address      string   `yaml:"bmc_address"`
		Username     string   `yaml:"bmc_username"`
		Password     string   `yaml:"bmc_password"`
		Model        string   `yaml:"model"`
		Accelerators int      `yaml:"accelerators"`
		CPUs         int      `yaml:"cpus"`
		Memory       int64    `yaml:"memory_bytes"`
	}
	var out struct {
		Servers []entry `yaml:"servers"`
	}
	for i, s := range servers {
		rack := s.Rack
		if rack == "" {
			rack = "r1"
		}
		out.Servers = append(out.Servers, entry{Name: s.Name, Region: region, Site: site, Rack: rack, Unit: 1 + i%40, Serial: s.Serial, MACs: s.MACs, Arch: s.Arch, Address: s.BMC, Username: s.User, Password: s.Password,
			Model: s.Model, Accelerators: len(s.Devices), CPUs: 112, Memory: 2 << 40})
	}
	b, err := yaml.Marshal(out)
	if err != nil {
		return fmt.Errorf("lab: enrolment file: %w", err)
	}
	_, err = w.Write(b)
	return err
}
