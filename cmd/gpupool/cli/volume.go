package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/schema"
)

func (a *app) volume() *cobra.Command {
	var in contract.NewVolume
	create := &cobra.Command{
		Use: "create NAME --path FOLDER", Short: "Let jobs mount a folder of the servers, or a claim of a Kubernetes cluster", Args: exactly("NAME"),
		Example: `  gpupool volume create datasets --path /mnt/lustre/datasets --claim datasets
  gpupool volume create blue-scratch --path /mnt/lustre/blue --tenant blue --writable --user 20001`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name = args[0]
			return act(a, cmd, func(c *client.Client) (schema.Volume, error) {
				return call.Do[schema.Volume](c.CreateVolume(cmd.Context(), in))
			}, func(v schema.Volume) string { return "Volume " + v.Name + ": " + volumeWords(v) })
		},
	}
	f := create.Flags()
	f.StringVar(&in.Path, "path", "", "folder of the servers, the same on all of them")
	f.StringVar(&in.Claim, "claim", "", "PersistentVolumeClaim that jobs on Kubernetes see in the folder's place")
	f.StringVar(&in.Tenant, "tenant", "", "whose jobs may mount it; else everybody's")
	f.BoolVar(&in.Writable, "writable", false, "a job may ask to write to it; needs --user")
	f.Int64Var(&in.UserId, "user", 0, "user and group id that jobs with it run as; else each has its own")
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the volumes that jobs may mount", Args: exactly(),
		Example: "  gpupool volume list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.VolumeList, error) {
				return call.Do[contract.VolumeList](c.ListVolumes(cmd.Context()))
			}, func(l contract.VolumeList) {
				t := newTable("NAME", "FOLDER", "CLAIM", "TENANT", "WRITABLE", "USER")
				for _, v := range l.Items {
					user, writable := "", "no"
					if v.Writable {
						writable = "yes"
					}
					if v.User != 0 {
						user = strconv.Itoa(v.User)
					}
					t.row(v.Name, v.Path, v.Claim, cmp.Or(v.Tenant, "all"), writable, user)
				}
				t.write(cmd.OutOrStdout(), "No volumes. Make one: gpupool volume create --help")
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Remove a volume that no live job mounts; what is in it stays", Args: exactly("NAME"),
		Example: "  gpupool volume delete blue-scratch",
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteVolume(cmd.Context(), args[0]))
			}, func(struct{}) string { return "Volume " + args[0] + " is gone." })
		},
	}
	return group("volume", "Volumes: storage that jobs may mount", list, create, remove)
}

func volumeWords(v schema.Volume) string {
	var of []string
	if v.Path != "" {
		of = append(of, "folder "+v.Path)
	}
	if v.Claim != "" {
		of = append(of, "claim "+v.Claim)
	}
	who, how := "everybody", "reading"
	if v.Tenant != "" {
		who = "tenant " + v.Tenant
	}
	if v.Writable {
		how = "reading and writing"
	}
	return fmt.Sprintf("%s, for %s by %s.", strings.Join(of, " and "), how, who)
}

// mounts reads VOLUME[/FOLDER]:TARGET[:ro|:rw] each.
func mounts(texts []string) ([]schema.Mount, error) {
	var out []schema.Mount
	for _, text := range texts {
		part := strings.Split(text, ":")
		if len(part) < 2 || len(part) > 3 || len(part) == 3 && part[2] != "ro" && part[2] != "rw" {
			return nil, schema.Invalid("mount", text, "VOLUME:TARGET or VOLUME/FOLDER:TARGET, and :rw behind it to write, such as datasets/set7:/data")
		}
		m := schema.Mount{Target: part[1], Write: len(part) == 3 && part[2] == "rw"}
		m.Volume, m.Path, _ = strings.Cut(part[0], "/")
		out = append(out, m)
	}
	return out, nil
}

// mountWords is a mount as it is written.
func mountWords(m schema.Mount) string {
	s := m.Volume
	if m.Path != "" {
		s += "/" + m.Path
	}
	s += ":" + m.Target
	if m.Write {
		s += ":rw"
	}
	return s
}
