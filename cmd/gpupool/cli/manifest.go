package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/schema"
)

// manifestJob is one document of a manifest. Its fields are the flags of job submit, with _ for -.
type manifestJob struct {
	Name, Tenant, Project, Spec, Region, Image, Network string
	Nodes                                               *int
	Priority                                            int
	Preemptible                                         bool
	Same                                                string
	SameRequired                                        bool `yaml:"same_required"`
	Command                                             []string
	Script                                              string
	Env                                                 map[string]string
	Mounts                                              []string
	WorkDir                                             string `yaml:"workdir"`
	TimeLimit                                           string `yaml:"time_limit"`
	MaxQueue                                            string `yaml:"max_queue"`
	Grace                                               string
	NotBefore                                           string   `yaml:"not_before"`
	AfterOK                                             []string `yaml:"after_ok"`
	AfterNotOK                                          []string `yaml:"after_not_ok"`
	AfterAny                                            []string `yaml:"after_any"`
	Hold                                                bool
	RequeueLimit                                        *int `yaml:"requeue_limit"`
	Replicas                                            int  // of a service; 0 = a job
	Array                                               string
	ArrayName                                           string `yaml:"array_name"`
	ArrayLimit                                          int    `yaml:"array_limit"`
	IdempotencyKey                                      string `yaml:"idempotency_key"`
}

// document is a job of a manifest, ready to be submitted, and where it stands.
type document struct {
	file    string
	node    ast.Node
	request request
	command []string
	indices string // of an array
}

// manifestFields are the contract's names of what a manifest calls otherwise.
var manifestFields = map[string]string{"work_dir": "workdir", "time_limit_ms": "time_limit", "max_queue_ms": "max_queue", "grace_ms": "grace", "held": "hold", "indices": "array", "array": "array_name"}

// at says in which line of the file a field of the contract stands.
func (d document) at(field string) string {
	name, rest := field, ""
	if i := strings.IndexAny(field, ".["); i >= 0 {
		name, rest = field[:i], field[i:]
	}
	if other, ok := manifestFields[name]; ok {
		name = other
	}
	return fmt.Sprintf("%s:%d: %s", d.file, lineOf(d.node, name), name+rest)
}

// lineOf is the line of a mapping's key, or of the mapping where it has none of that name.
func lineOf(n ast.Node, key string) int {
	if m, ok := n.(ast.MapNode); ok {
		for it := m.MapRange(); it.Next(); {
			if it.Key().GetToken().Value == key {
				return it.Key().GetToken().Position.Line
			}
		}
		for it := m.MapRange(); it.Next(); {
			return it.Key().GetToken().Position.Line
		}
	}
	return n.GetToken().Position.Line
}

// readManifest reads all documents of a file, or of standard input where it is "-". All are checked before one is used.
func readManifest(path string, stdin io.Reader) ([]document, error) {
	b, err := readFile(path, stdin)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, yamlError(path, err, manifestHint)
	}
	var out []document
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		var m manifestJob
		if err := yaml.NewDecoder(bytes.NewReader(nil), yaml.Strict()).DecodeFromNode(doc.Body, &m); err != nil {
			return nil, yamlError(path, err, manifestHint)
		}
		d := document{file: path, node: doc.Body}
		if err := d.fill(m); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, schema.Invalid(path, "", "one job or more, as YAML documents parted by ---")
	}
	return out, nil
}

// fill makes the request of a document.
func (d *document) fill(m manifestJob) error {
	r := &d.request
	r.in = contract.NewJob{Name: m.Name, Tenant: m.Tenant, Project: m.Project, Spec: m.Spec, Region: m.Region, Image: m.Image, Network: m.Network, Priority: m.Priority, Preemptible: m.Preemptible,
		Same: m.Same, SameRequired: m.SameRequired, WorkDir: m.WorkDir, Held: m.Hold, Array: m.ArrayName, ArrayLimit: m.ArrayLimit}
	r.nodes, r.requeues, r.key, r.values = 1, -1, m.IdempotencyKey, m.Env
	for i, text := range m.Mounts {
		if _, err := mounts([]string{text}); err != nil {
			return d.place(fmt.Sprintf("mounts[%d]", i), err)
		}
	}
	r.mounts = m.Mounts
	if m.Nodes != nil {
		r.nodes = *m.Nodes
	}
	if m.RequeueLimit != nil {
		if r.requeues = *m.RequeueLimit; r.requeues < 0 {
			return schema.Invalid(d.at("requeue_limit"), r.requeues, "0 or more")
		}
	}
	r.afterOK, r.afterNotOK, r.afterAny = m.AfterOK, m.AfterNotOK, m.AfterAny
	for _, v := range []struct {
		field, text string
		to          pflag.Value
	}{{"time_limit", m.TimeLimit, &r.limit}, {"max_queue", m.MaxQueue, &r.maxQueue}, {"grace", m.Grace, &r.grace}, {"not_before", m.NotBefore, &r.notBefore}} {
		if v.text == "" {
			continue
		}
		if err := v.to.Set(v.text); err != nil {
			return d.place(v.field, err)
		}
	}
	d.indices = m.Array
	switch {
	case m.Replicas < 0:
		return schema.Invalid(d.at("replicas"), m.Replicas, "1 or more, or nothing: it is no service")
	case m.Replicas > 0 && (m.Array != "" || m.ArrayName != ""):
		return schema.Invalid(d.at("indices"), m.Array, "nothing beside replicas: a service's name is its name")
	case m.Replicas > 0:
		d.indices = r.serve(m.Replicas)
	}
	switch {
	case m.Spec == "":
		return schema.Invalid(d.at("spec"), "", "the name of a standard spec; see gpupool spec list")
	case len(m.Command) > 0 && m.Script != "":
		return schema.Invalid(d.at("script"), m.Script, "nothing beside command: one of the two")
	case len(m.Command) > 0:
		d.command = m.Command
	case m.Script != "":
		d.command = []string{"/bin/sh", "-c", m.Script}
	default:
		return schema.Invalid(d.at("command"), "", "a list of program and arguments; or script, a text for /bin/sh")
	}
	return nil
}

// place says of an error about a field where the file has it.
func (d document) place(field string, err error) error {
	var se *schema.Error
	if !errors.As(err, &se) {
		return err
	}
	placed := *se
	placed.Field = d.at(field)
	return &placed
}

// refused does the same for a refusal of the pool, by the contract's name of the field.
func (d document) refused(err error) error {
	var se *schema.Error
	if !errors.As(err, &se) || d.node == nil {
		return err
	}
	if se.Field != "" {
		return d.place(strings.TrimPrefix(se.Field, "job."), err)
	}
	placed := *se
	placed.Field = fmt.Sprintf("%s:%d", d.file, lineOf(d.node, ""))
	return &placed
}

const manifestHint = "a job's fields are the flags of gpupool job submit, with _ for -; see docs/how-to/jobs.md"

func yamlError(path string, err error, hint string) error {
	text, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
	line := ""
	if at, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "] "); ok && strings.HasPrefix(text, "[") {
		line, text = ":"+strings.Split(at, ":")[0], rest
	}
	return &schema.Error{Code: schema.CodeInvalid, Field: path + line, Message: text, Hint: hint}
}

func readFile(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(stdin, maxFile))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: path, Message: "can't be read", Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: path, Message: "can't be read", Err: err}
	}
	return b, nil
}

// maxFile is the most of a manifest or script that is read, in bytes.
const maxFile = 1 << 20

// besideFile are the flags that go with a manifest: what a job is stands in the file.
var besideFile = map[string]bool{"file": true, "detach": true, "dry-run": true, "tenant": true, "project": true, "url": true, "profile": true, "output": true}

// submitManifest submits a file's jobs in its order, so that one may wait for those before it by their names.
func (a *app) submitManifest(cmd *cobra.Command, c *client.Client, path string, flags contract.NewJob, detach, dry bool) error {
	var beside error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !besideFile[f.Name] && beside == nil {
			beside = usageError{fmt.Errorf("--%s: with -f the file says what its jobs are", f.Name)}
		}
	})
	if beside != nil {
		return beside
	}
	docs, err := readManifest(path, cmd.InOrStdin())
	if err != nil {
		return err
	}
	made := []contract.Job{}
	wait := error(nil)
	for i := range docs {
		d := &docs[i]
		if d.request.in.Tenant == "" {
			d.request.in.Tenant = flags.Tenant
		}
		if d.request.in.Project == "" {
			d.request.in.Project = flags.Project
		}
		switch {
		case dry && d.indices != "":
			return schema.Invalid(d.at("array"), d.indices, "nothing with --dry-run, which is of one job")
		case dry:
			err = a.dryRun(cmd, c, &d.request, d.command)
			var would *exitError
			if errors.As(err, &would) && would.code == ExitWouldWait {
				wait, err = err, nil
			}
		case d.indices != "":
			err = a.submitArray(cmd, c, &d.request, d.indices, d.command)
		default:
			var j contract.Job
			if j, err = d.request.submit(cmd, c, d.command); err == nil {
				made = append(made, j)
				if !a.json() {
					fmt.Fprintln(cmd.OutOrStdout(), j.Id)
				}
			}
		}
		if err != nil {
			if n := len(made); n > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d of the file's jobs were submitted before it, the last is %s.\n", n, made[n-1].Id)
			}
			return d.refused(err)
		}
	}
	switch {
	case dry:
		return wait
	case a.json() && len(docs) == 1 && len(made) == 1:
		return printJSON(cmd.OutOrStdout(), made[0])
	case a.json() && len(made) > 0:
		return printJSON(cmd.OutOrStdout(), contract.JobList{Items: made})
	case detach || len(docs) > 1 || len(made) == 0:
		return nil
	}
	return a.watchStart(cmd, c, made[0])
}

// watchStart shows a job's wait until it runs or has ended.
func (a *app) watchStart(cmd *cobra.Command, c *client.Client, j contract.Job) error {
	j, err := a.followJob(cmd, c, j, func(j contract.Job) bool { return j.State == schema.JobRunning || j.State.Ended() })
	if err != nil || !j.State.Ended() {
		return err
	}
	return ended(j)
}
