package burnin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dcgmTests are what each level of `dcgmi diag -r` runs on every GPU (NVIDIA, DCGM diagnostics: test levels); each must say
// Pass for each GPU. Others that are there must not fail.
var dcgmTests = map[string][]string{
	"1": {"software"}, "2": {"pcie", "memory"},
	"3": {"pcie", "memory", "diagnostic", "targeted_stress", "targeted_power", "memory_bandwidth"},
	"4": {"pcie", "memory", "diagnostic", "targeted_stress", "targeted_power", "memory_bandwidth", "pulse_test", "memtest"},
}

var dcgm = tool{
	program: "dcgmi", version: []string{"--version"}, spare: 30 * time.Minute,
	args: func(o order) []string { return []string{"diag", "-r", o.option("level", "3"), "-j"} },
	read: readDCGM,
}

// dcgmResult is one test's word on one entity, in the form of DCGM 3 (gpu_ids, or gpu_id) or 4 (entity_group, entity_id).
type dcgmResult struct {
	Status   string          `json:"status"`
	IDs      string          `json:"gpu_ids"`
	ID       json.RawMessage `json:"gpu_id"`
	Group    string          `json:"entity_group"`
	Entity   *int            `json:"entity_id"`
	Warnings json.RawMessage `json:"warnings"`
}

func (r dcgmResult) gpus() []int {
	if r.Entity != nil && (r.Group == "" || strings.EqualFold(r.Group, "GPU")) {
		return []int{*r.Entity}
	}
	var out []int
	for _, s := range strings.FieldsFunc(r.IDs+","+strings.Trim(string(r.ID), `"`), func(c rune) bool { return c == ',' || c == ' ' }) {
		if n, err := strconv.Atoi(s); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func readDCGM(o order, out []byte, code int) (Findings, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return Findings{}, unproven("dcgmi ended with exit code %d and without a result: %s", code, lastLine(out))
	}
	var doc map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(out[start:]))
	if err := dec.Decode(&doc); err != nil {
		return Findings{}, unproven("dcgmi's result was cut off or can't be read (%v), exit code %d", err, code)
	}
	var diag struct {
		Error      string `json:"runtime_error"`
		Categories []struct {
			Tests []struct {
				Name    string       `json:"name"`
				Results []dcgmResult `json:"results"`
			} `json:"tests"`
		} `json:"test_categories"`
	}
	for _, key := range []string{"DCGM GPU Diagnostic", "DCGM Diagnostic"} {
		if raw, ok := doc[key]; ok {
			if err := json.Unmarshal(raw, &diag); err != nil {
				return Findings{}, unproven("dcgmi's result can't be read: %v", err)
			}
		}
	}
	if diag.Error != "" {
		return Findings{}, unproven("dcgmi could not run: %s", diag.Error)
	}
	level := o.option("level", "3")
	said := map[int]map[string]error{}
	for _, c := range diag.Categories {
		for _, t := range c.Tests {
			name := dcgmName(t.Name)
			for _, r := range t.Results {
				for _, gpu := range r.gpus() {
					if said[gpu] == nil {
						said[gpu] = map[string]error{}
					}
					if err := dcgmWord(name, r); err != nil || said[gpu][name] == nil {
						said[gpu][name] = err
					}
				}
			}
		}
	}
	words := map[int][]error{}
	for _, d := range o.devices {
		tests := said[d.Index]
		for _, name := range dcgmTests[level] {
			if w, ok := tests[name]; ok {
				words[d.Index] = append(words[d.Index], w)
			} else {
				words[d.Index] = append(words[d.Index], unproven("%s was not run", name))
			}
		}
		for name, w := range tests {
			var u *Unproven
			if !slices.Contains(dcgmTests[level], name) && w != nil && !errors.As(w, &u) {
				words[d.Index] = append(words[d.Index], w)
			}
		}
	}
	f, err := o.settle("dcgmi", words)
	if err == nil && len(f.Failed) == 0 && code != 0 {
		return f, unproven("dcgmi says Pass for every GPU, and ends with exit code %d", code)
	}
	return f, err
}

func dcgmName(name string) string {
	name = strings.ReplaceAll(strings.ToLower(name), " ", "_")
	if name == "gpu_memory" {
		return "memory"
	}
	return name
}

func dcgmWord(name string, r dcgmResult) error {
	switch strings.ToLower(r.Status) {
	case "pass":
		return nil
	case "fail":
		return fmt.Errorf("%s: %.300s", name, warnings(r.Warnings))
	default:
		return unproven("%s: %s", name, r.Status)
	}
}

// warnings are DCGM's words on a failure: text, or a list of texts or of objects with one.
func warnings(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return "no words"
	}
	var out []string
	for _, x := range list {
		var o struct {
			Warning string `json:"warning"`
		}
		if json.Unmarshal(x, &text) == nil {
			out = append(out, text)
		} else if json.Unmarshal(x, &o) == nil {
			out = append(out, o.Warning)
		}
	}
	return strings.Join(out, "; ")
}

var gpuBurn = tool{
	program: "gpu_burn", spare: 5 * time.Minute,
	args: func(o order) []string { return []string{"-m", o.option("memory", "90%"), o.seconds()} },
	read: func(o order, out []byte, code int) (Findings, error) {
		tested := regexp.MustCompile(`(?m)^\s*Tested (\d+) GPUs?:`).FindSubmatchIndex(out)
		if tested == nil {
			return Findings{}, unproven("gpu_burn ended with exit code %d before its result: %s", code, lastLine(out))
		}
		words := map[int][]error{}
		for _, m := range regexp.MustCompile(`(?m)^\s*GPU (\d+): (\S+)`).FindAllSubmatch(out[tested[0]:], -1) {
			i, _ := strconv.Atoi(string(m[1])) // digits
			var w error
			switch string(m[2]) {
			case "OK":
			case "FAULTY":
				w = errors.New("it computed wrongly under load")
			default:
				w = unproven("%s", m[2])
			}
			words[i] = append(words[i], w)
		}
		return o.settle("gpu_burn", words)
	},
}

var nvbandwidth = tool{
	program: "nvbandwidth", spare: 10 * time.Minute,
	args: func(order) []string {
		return []string{"-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce"}
	},
	read: readNVBandwidth,
}

// bandwidthMetrics are the floors by nvbandwidth's tests.
var bandwidthMetrics = map[string]string{"host_to_device_memcpy_ce": "host-to-device", "device_to_host_memcpy_ce": "device-to-host", "device_to_device_memcpy_read_ce": "peer-to-peer"}

func readNVBandwidth(o order, out []byte, code int) (Findings, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return Findings{}, unproven("nvbandwidth ended with exit code %d and without a result: %s", code, lastLine(out))
	}
	var doc struct {
		Root struct {
			Error string `json:"error"`
			Cases []struct {
				Name   string     `json:"name"`
				Status string     `json:"status"`
				Matrix [][]string `json:"bandwidth_matrix"`
			} `json:"testcases"`
		} `json:"nvbandwidth"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil {
		return Findings{}, unproven("nvbandwidth's result was cut off or can't be read: %v", err)
	}
	if doc.Root.Error != "" {
		return Findings{}, unproven("nvbandwidth: %s", doc.Root.Error)
	}
	words, figures, ran := map[int][]error{}, map[string]float64{}, map[string]bool{}
	for _, c := range doc.Root.Cases {
		metric := bandwidthMetrics[c.Name]
		if metric == "" || c.Status != "Passed" && !strings.EqualFold(c.Status, "Error") {
			continue // waived: not run
		}
		ran[metric] = c.Status == "Passed"
		slowest := map[int]float64{}
		for r, row := range c.Matrix {
			for col, cell := range row {
				v, err := strconv.ParseFloat(cell, 64)
				if err != nil { // N/A: a GPU with itself
					continue
				}
				ends := []int{col}
				if metric == "peer-to-peer" {
					ends = []int{r, col}
				}
				for _, i := range ends {
					if old, ok := slowest[i]; !ok || v < old {
						slowest[i] = v
					}
				}
			}
		}
		for i, v := range slowest {
			words[i] = append(words[i], o.floor(metric, v))
			if d, ok := o.byIndex(i); ok {
				figures[nameOf(d)+"/"+metric] = v
			}
		}
	}
	for _, d := range o.devices {
		for _, metric := range []string{"host-to-device", "device-to-host", "peer-to-peer"} {
			if !ran[metric] && (metric != "peer-to-peer" || len(o.devices) > 1) {
				words[d.Index] = append(words[d.Index], unproven("%s was not measured", metric))
			}
		}
	}
	f, err := o.settle("nvbandwidth", words)
	f.Figures = figures
	return f, err
}

var nccl = collective("all_reduce_perf")
var rccl = collective("all_reduce_perf")

// collective is nccl-tests and rccl-tests, which print alike. One figure is all devices': the slowest link sets it.
func collective(program string) tool {
	return tool{
		program: program, spare: 10 * time.Minute,
		args: func(o order) []string {
			size := o.option("size", "16G")
			return []string{"-b", size, "-e", size, "-g", strconv.Itoa(len(o.devices)), "-c", "1", "-n", o.option("rounds", "20")}
		},
		read: func(o order, out []byte, code int) (Findings, error) {
			wrong := regexp.MustCompile(`(?m)^#\s*Out of bounds values\s*:\s*(\d+)\s+(\S+)`).FindSubmatch(out)
			avg := regexp.MustCompile(`(?m)^#\s*Avg bus bandwidth\s*:\s*([0-9.]+)`).FindSubmatch(out)
			if code != 0 || wrong == nil || avg == nil {
				return Findings{}, unproven("%s ended with exit code %d and without its sums: %s", program, code, lastLine(out))
			}
			v, err := strconv.ParseFloat(string(avg[1]), 64)
			if err != nil {
				return Findings{}, unproven("%s measured %q", program, avg[1])
			}
			w := o.floor("all-reduce", v)
			if string(wrong[1]) != "0" {
				w = fmt.Errorf("%s values of an all-reduce were wrong", wrong[1])
			}
			words := map[int][]error{}
			for _, d := range o.devices {
				words[d.Index] = []error{w}
			}
			f, err := o.settle(program, words)
			f.Figures = map[string]float64{"all-reduce": v}
			return f, err
		},
	}
}

var rvs = tool{
	program: "rvs", version: []string{"--version"}, spare: 15 * time.Minute,
	args: func(o order) []string { return []string{"-r", o.option("level", "4")} },
	read: func(o order, out []byte, code int) (Findings, error) {
		words := map[int][]error{}
		// [RESULT] [182267.786514] [action_1] gst [GPU:: 0] ... target stress : 5000 met: TRUE, or pass: FALSE. A number that is
		// no device's says nothing of any.
		line := regexp.MustCompile(`(?mi)^\[RESULT\s*\].*?\bgpu(?:::|[ _]?(?:id|index))?[ :=]*(\d+)\b.*\b(?:pass|met)\s*:\s*(TRUE|FALSE)`)
		for _, m := range line.FindAllSubmatch(out, -1) {
			i, _ := strconv.Atoi(string(m[1])) // digits
			var w error
			if strings.EqualFold(string(m[2]), "FALSE") {
				w = errors.New(strings.TrimSpace(string(m[0])))
			}
			words[i] = append(words[i], w)
		}
		f, err := o.settle("rvs", words)
		if err == nil && len(f.Failed) == 0 && code != 0 {
			return f, unproven("rvs ends with exit code %d: %s", code, lastLine(out))
		}
		return f, err
	},
}

func lastLine(b []byte) string {
	b = bytes.TrimSpace(b)
	b = b[bytes.LastIndexByte(b, '\n')+1:]
	if len(b) > 200 {
		b = b[:200]
	}
	if len(b) == 0 {
		return "it printed nothing"
	}
	return strings.ToValidUTF8(string(b), "�")
}
