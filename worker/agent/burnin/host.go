package burnin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"gpupool/schema/agentproto"
)

// server is the findings of a test of the server itself.
func server(failure string) Findings {
	if failure != "" {
		return Findings{Failed: []Failure{{Device: agentproto.Device{Slot: "server"}, Text: failure}}}
	}
	return Findings{Passed: []agentproto.Device{{Slot: "server"}}}
}

// Exit codes of stress-ng (its manual, EXIT STATUS).
const (
	stressFailed   = 2 // a stressor failed: with --verify, wrong results
	stressUntested = 3 // could not be started for want of resources
	stressNotHere  = 4 // not implemented here
)

var (
	stressCPU = stress(func(o order) []string {
		return []string{"--cpu", o.option("workers", "0"), "--cpu-method", "all"}
	})
	stressMemory = stress(func(o order) []string {
		return []string{"--vm", o.option("workers", "0"), "--vm-bytes", o.option("memory", "90%"), "--vm-method", "all", "--vm-keep"}
	})
)

func stress(stressor func(order) []string) tool {
	return tool{
		program: "stress-ng", version: []string{"--version"}, spare: 2 * time.Minute, host: true,
		args: func(o order) []string {
			return append(stressor(o), "--verify", "--timeout", o.seconds()+"s", "--metrics-brief")
		},
		read: func(_ order, out []byte, code int) (Findings, error) {
			fails := regexp.MustCompile(`(?m)^stress-ng: (?:fail|error):.*$`).FindAll(out, -1)
			done := regexp.MustCompile(`(?m)^stress-ng: (?:info|metrc):.*successful run completed`).Match(out)
			skipped := regexp.MustCompile(`(?m)(?:stressors?|skipped): [1-9]\d*: .*skipped|(?m)skipped: [1-9]`).Match(out)
			switch {
			case code == stressFailed && len(fails) > 0:
				return server(string(bytes.TrimSpace(fails[0]))), nil
			case code == 0 && done && !skipped && len(fails) == 0:
				return server(""), nil
			case code == stressUntested || code == stressNotHere:
				return Findings{}, unproven("stress-ng could not run it here: %s", lastLine(out))
			default:
				return Findings{}, unproven("stress-ng ended with exit code %d: %s", code, lastLine(out))
			}
		},
	}
}

// fio writes a file with checksums and reads it again: it proves the drive under the scratch folder, and what is between.
var fio = tool{
	program: "fio", version: []string{"--version"}, spare: 10 * time.Minute, host: true,
	args: func(o order) []string {
		return []string{"--name=burn-in", "--directory=" + o.scratch, "--filename_format=gpupool-burn-in.$jobnum", "--size=" + o.option("size", "4g"), "--rw=randwrite", "--bs=128k", "--direct=" + o.option("direct", "1"),
			"--ioengine=psync", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--unlink=1", "--verify_state_save=0", "--output-format=json"}
	},
	read: func(_ order, out []byte, code int) (Findings, error) {
		start := bytes.IndexByte(out, '{')
		if start < 0 {
			return Findings{}, unproven("fio ended with exit code %d and without a result: %s", code, lastLine(out))
		}
		var doc struct {
			Jobs []struct {
				Error int `json:"error"`
				Read  struct {
					Bytes     int64   `json:"io_bytes"`
					Bandwidth float64 `json:"bw_bytes"`
				} `json:"read"`
				Write struct {
					Bytes     int64   `json:"io_bytes"`
					Bandwidth float64 `json:"bw_bytes"`
				} `json:"write"`
			} `json:"jobs"`
		}
		if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&doc); err != nil || len(doc.Jobs) == 0 {
			return Findings{}, unproven("fio's result was cut off or can't be read (%v), exit code %d", err, code)
		}
		const eilseq = 84 // what fio ends with where a checksum is wrong
		j := doc.Jobs[0]
		switch {
		case j.Error == eilseq || bytes.Contains(out, []byte("verify: bad")) || bytes.Contains(out, []byte("crc32c: verify failed")):
			return server(fmt.Sprintf("what was written was not what was read: %s", firstLine(out))), nil
		case code != 0 || j.Error != 0:
			return Findings{}, unproven("fio ended with exit code %d, error %d: %s", code, j.Error, firstLine(out))
		case j.Write.Bytes == 0 || j.Read.Bytes < j.Write.Bytes:
			return Findings{}, unproven("fio wrote %d bytes and read %d of them again", j.Write.Bytes, j.Read.Bytes)
		}
		f := server("")
		f.Figures = map[string]float64{"write_bytes_per_second": j.Write.Bandwidth, "read_bytes_per_second": j.Read.Bandwidth}
		return f, nil
	},
}
