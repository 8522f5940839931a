package slurm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"gpupool/schema"
)

// rest speaks to slurmrestd, as user, with a JWT.
type rest struct {
	base, user         string
	tokenFile, keyFile string
	http               *http.Client
}

// unreachable says that slurmrestd did not answer: it is not known whether it acted.
type unreachable struct{ err error }

func (e *unreachable) Error() string { return "slurmrestd: " + e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

// tokenLife is how long a token that is made here is good.
const tokenLife = 2 * time.Minute

func newREST(c Config) (*rest, error) {
	if _, ok := schema.ParseURL(c.URL); !ok {
		return nil, schema.Invalid("url", c.URL, "slurmrestd's address, as in https://slurm.example.net:6820")
	}
	if (c.TokenFile == "") == (c.KeyFile == "") {
		return nil, schema.Invalid("token_file", c.TokenFile, "set where jwt_key_file is not, and left out where it is")
	}
	return &rest{base: strings.TrimSuffix(c.URL, "/") + "/slurm/" + cmp.Or(c.Version, "v0.0.38"), user: c.User, tokenFile: c.TokenFile, keyFile: c.KeyFile,
		http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}}}, nil
}

// token is read or made for every request: files are replaced, tokens expire. https://slurm.schedmd.com/jwt.html
func (r *rest) token() (string, error) {
	if r.tokenFile != "" {
		b, err := os.ReadFile(r.tokenFile)
		if err != nil {
			return "", fmt.Errorf("token_file: %w", err)
		}
		return strings.TrimPrefix(strings.TrimSpace(string(b)), "SLURM_JWT="), nil
	}
	key, err := os.ReadFile(r.keyFile)
	if err != nil {
		return "", fmt.Errorf("jwt_key_file: %w", err)
	}
	now := time.Now()
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sun": r.user, "iat": now.Unix(), "exp": now.Add(tokenLife).Unix()}).SignedString(key)
}

// apiError is one of slurmrestd's.
type apiError struct {
	Code   int    `json:"error_code"`
	Number int    `json:"error_number"`
	Text   string `json:"error"`
	More   string `json:"description"`
}

const (
	errHeld       = 2042 // ESLURM_JOB_HELD: it was submitted and is held, as asked
	errInvalidJob = 2017 // ESLURM_INVALID_JOB_ID
)

// call makes a request. Its answer's errors are given apart: some are none.
func (r *rest) call(ctx context.Context, method, path string, body, answer any) ([]apiError, error) {
	token, err := r.token()
	if err != nil {
		return nil, err
	}
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, payload)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-SLURM-USER-NAME", r.user)
	req.Header.Set("X-SLURM-USER-TOKEN", token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &unreachable{err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, &unreachable{err}
	}
	var errs struct {
		Errors []apiError `json:"errors"`
	}
	if err := errors.Join(json.Unmarshal(b, &errs), json.Unmarshal(b, answer)); err != nil {
		return nil, &unreachable{fmt.Errorf("%s %s: status %d, no JSON: %.200s", method, path, resp.StatusCode, b)}
	}
	if len(errs.Errors) == 0 && resp.StatusCode >= 300 {
		errs.Errors = []apiError{{Text: resp.Status}}
	}
	return errs.Errors, nil
}

func failure(errs []apiError) error {
	var texts []string
	for _, e := range errs {
		texts = append(texts, strings.TrimSpace(strings.Join([]string{e.Text, e.More}, " ")))
	}
	text := "slurmrestd: " + strings.Join(texts, "; ")
	// Slurm's answer that its controller is away comes through slurmrestd with an ordinary status.
	for _, away := range []string{"Unable to contact slurm controller", "Connection refused", "timed out", "Zero Bytes"} {
		if strings.Contains(text, away) {
			return errors.New(text)
		}
	}
	return &schema.Error{Code: schema.CodeInvalid, Message: text}
}

func (r *rest) submit(ctx context.Context, d description) error {
	j := map[string]any{"name": d.Name, "comment": d.Comment, "current_working_directory": d.WorkDir, "environment": map[string]string{"PATH": searchPath}, "gres": d.Gres,
		"nodelist": strings.Join(d.Nodes, ","), "nodes": len(d.Nodes), "tasks_per_node": 1, "standard_output": d.Output, "standard_error": d.Output, "hold": true, "no_requeue": true}
	if d.CPUs > 0 {
		j["cpus_per_task"] = d.CPUs
	}
	if d.MemoryMB > 0 {
		j["memory_per_node"] = d.MemoryMB
	}
	if d.Partition != "" {
		j["partition"] = d.Partition
	}
	if d.Account != "" {
		j["account"] = d.Account
	}
	if j["time_limit"] = "UNLIMITED"; d.Minutes > 0 {
		j["time_limit"] = d.Minutes
	}
	var answer struct {
		ID uint32 `json:"job_id"`
	}
	errs, err := r.call(ctx, http.MethodPost, "/job/submit", map[string]any{"script": d.Script, "job": j}, &answer)
	if err != nil {
		return err
	}
	for _, e := range errs {
		if e.Code != errHeld {
			return failure(errs)
		}
	}
	if answer.ID == 0 {
		return failure(errs)
	}
	return nil
}

func (r *rest) release(ctx context.Context, id string) error {
	errs, err := r.call(ctx, http.MethodPost, "/job/"+url.PathEscape(id), map[string]any{"hold": false}, &struct{}{})
	if err != nil || len(errs) == 0 || errs[0].Number == errInvalidJob || errs[0].Code == errInvalidJob {
		return err
	}
	return failure(errs)
}

// job asks for one; nil where slurmctld doesn't know it.
func (r *rest) job(ctx context.Context, id uint32) (*job, error) {
	var answer struct {
		Jobs []struct {
			ID        uint32   `json:"job_id"`
			Comment   string   `json:"comment"`
			User      string   `json:"user_name"`
			State     string   `json:"job_state"`
			Reason    string   `json:"state_reason"`
			TRES      string   `json:"tres_per_node"`
			Submitted int64    `json:"submit_time"`
			Began     int64    `json:"start_time"`
			Ended     int64    `json:"end_time"`
			Exit      int      `json:"exit_code"` // as wait(2) gives it
			Restarts  int      `json:"restart_cnt"`
			Nodes     string   `json:"nodes"`
			Asked     string   `json:"required_nodes"`
			Gres      []string `json:"gres_detail"` // by node, in the order of the nodes
		} `json:"jobs"`
	}
	errs, err := r.call(ctx, http.MethodGet, "/job/"+strconv.FormatUint(uint64(id), 10), nil, &answer)
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		if errs[0].Number == errInvalidJob || errs[0].Code == errInvalidJob {
			return nil, nil
		}
		return nil, failure(errs)
	}
	for _, a := range answer.Jobs {
		if a.ID != id {
			continue
		}
		j := &job{ID: id, Comment: a.Comment, User: a.User, State: a.State, Reason: a.Reason, TRES: a.TRES, Submitted: a.Submitted, Began: a.Began, Ended: a.Ended, Exit: a.Exit >> 8 & 0xff, Signal: a.Exit & 0x7f,
			Restarts: a.Restarts, Nodes: hosts(a.Nodes), Asked: hosts(a.Asked), Devices: map[string][]int{}}
		for i, n := range j.Nodes {
			if i < len(a.Gres) {
				j.Devices[n] = gres(a.Gres[i])
			}
		}
		return j, nil
	}
	return nil, nil
}
