package config

import (
	"fmt"
	"slices"

	"gpupool/schema"
)

// ClusterKind is what a cluster is.
type ClusterKind string

const (
	Slurm      ClusterKind = "slurm"
	Kubernetes ClusterKind = "kubernetes"
)

// Valid says whether k is a kind.
func (k ClusterKind) Valid() bool { return k == Slurm || k == Kubernetes }

// Cluster is a Slurm or Kubernetes control plane on whose nodes jobs run.
type Cluster struct {
	Name string      `yaml:"name" help:"What servers are enrolled with as their cluster." zero:"must be set" example:"alps"`
	Kind ClusterKind `yaml:"kind" help:"slurm or kubernetes." zero:"must be set" example:"slurm"`
	// Owner marks this pool's jobs in the cluster, where several pools share it.
	Owner string `yaml:"owner" help:"Marks this pool's jobs, where several pools share the cluster." zero:"gpupool" example:"pool-b"`

	URL        string `yaml:"url" help:"slurm: slurmrestd's address." zero:"Slurm's commands alone are used" example:"https://slurm.example.net:6820"`
	APIVersion string `yaml:"api_version" help:"slurm: version of slurmrestd's paths." zero:"v0.0.38" example:"v0.0.38"`
	TokenFile  string `yaml:"token_file" help:"slurm: file with a JWT for slurmrestd, read anew for each request." zero:"jwt_key_file" example:"/etc/gpupool/slurm.token"`
	JWTKeyFile string `yaml:"jwt_key_file" help:"slurm: slurmctld's jwt_key, with which short tokens are made." zero:"token_file" example:"/etc/slurm/jwt_hs256.key"`
	User       string `yaml:"user" help:"slurm: whose jobs they are, and who may drain nodes." zero:"root" example:"gpupool"`
	Conf       string `yaml:"conf" help:"slurm: slurm.conf for the commands." zero:"their default" example:"/etc/slurm/slurm.conf"`
	BinDir     string `yaml:"bin_dir" help:"slurm: folder of the commands." zero:"PATH" example:"/opt/slurm/bin"`
	Partition  string `yaml:"partition" help:"slurm: partition of the jobs." zero:"the cluster's default" example:"gpu"`
	Account    string `yaml:"account" help:"slurm: account of the jobs." zero:"the user's default" example:"pool"`
	LogDir     string `yaml:"log_dir" help:"slurm: folder that the nodes and this process share, through which jobs' output comes." zero:"no output is kept" example:"/shared/gpupool"`

	ContainerFlag string `yaml:"container_flag" help:"slurm: srun's option that takes a container image, for jobs with an image of their own; --container-image is pyxis'." zero:"such jobs are refused" example:"--container-image"`

	Kubeconfig string `yaml:"kubeconfig" help:"kubernetes: the file that says how to reach it." zero:"the pod's own service account" example:"/etc/gpupool/kubeconfig"`
	Context    string `yaml:"context" help:"kubernetes: context of the kubeconfig." zero:"its current one" example:"prod"`
	Namespace  string `yaml:"namespace" help:"kubernetes: namespace of the jobs; it must be there." zero:"gpupool" example:"jobs"`
	Image      string `yaml:"image" help:"kubernetes: container image of jobs that bring none." zero:"must be set with kind kubernetes" example:"pytorch:2.9"`
}

func (c Cluster) validate(v *checks, at string) {
	v.that(name.MatchString(c.Name), at+"name", c.Name, "1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
	v.that(c.Kind.Valid(), at+"kind", c.Kind, "slurm or kubernetes")
	v.that(c.Owner == "" || name.MatchString(c.Owner), at+"owner", c.Owner, "1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
	if c.URL != "" {
		_, ok := schema.ParseURL(c.URL)
		v.that(ok, at+"url", c.URL, "slurmrestd's address, as in https://slurm.example.net:6820")
		v.that((c.TokenFile == "") != (c.JWTKeyFile == ""), at+"token_file", c.TokenFile, "set where jwt_key_file is not, and left out where it is, with url")
	}
	v.that(c.Kind != Kubernetes || c.Image != "", at+"image", c.Image, "set with kind kubernetes: what jobs run in")
}

func validateClusters(clusters []Cluster, v *checks) {
	for i, c := range clusters {
		at := fmt.Sprintf("clusters[%d].", i)
		c.validate(v, at)
		v.that(!slices.ContainsFunc(clusters[:i], func(o Cluster) bool { return o.Name == c.Name }), at+"name", c.Name, "named once")
	}
}
