package lab

import (
	"errors"
	"fmt"
	"path/filepath"

	"gpupool/deploy/lab/bmc"
)

// captures are the archives of captured Redfish trees, by the profile that each is the real thing of. Only those with
// as many accelerators as the profile shows.
var captures = map[string]string{bmc.DGXH100: "nvidia_viking.tar.xz", bmc.SupermicroHGX: "supermicro.tar.xz"}

// WithTrees returns the servers, those of a profile that a folder has a captured tree of serving that instead of the
// generated one. A server whose tree can't be had keeps its profile, and the error says why; the servers are right to
// use either way.
func WithTrees(servers []ServerConfig, folder string) ([]ServerConfig, error) {
	out := append([]ServerConfig(nil), servers...)
	tried := map[string]error{}
	var errs []error
	for i, s := range out {
		name := captures[s.Profile]
		if name == "" || s.Tree != "" {
			continue
		}
		path := filepath.Join(folder, name)
		err, known := tried[name]
		if !known {
			_, err = bmc.FromTree(path)
			tried[name] = err
			if err != nil {
				errs = append(errs, fmt.Errorf("the generated %s is served instead of a captured one: %w", s.Profile, err))
			}
		}
		if err == nil {
			out[i].Tree = path
		}
	}
	return out, errors.Join(errs...)
}
