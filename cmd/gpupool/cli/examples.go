package cli

import "github.com/spf13/cobra"

// examples are those of verbs that are used in one plain way; what needs more than a line has its example at the verb.
var examples = map[string]string{
	"login":               "gpupool login --url https://pool.example.org",
	"whoami":              "gpupool whoami",
	"overview":            "gpupool overview",
	"server list":         "gpupool server list --phase onboarding",
	"server show":         "gpupool server show r12s03",
	"server watch":        "gpupool server watch r12s03",
	"server retry":        "gpupool server retry r12s03",
	"server skip":         "gpupool server skip r12s03 runtime --reason \"no containers on this one\"",
	"server abort":        "gpupool server abort r12s03",
	"server cordon":       "gpupool server cordon r12s03 --accelerator SXM3 --reason \"noisy fan\"",
	"server uncordon":     "gpupool server uncordon r12s03 --accelerator SXM3",
	"server drain":        "gpupool server drain r12s03 --reason \"new rails on Monday\"",
	"server undrain":      "gpupool server undrain r12s03",
	"server protect":      "gpupool server protect r12s03",
	"server unprotect":    "gpupool server unprotect r12s03",
	"install list":        "gpupool install list",
	"install profiles":    "gpupool install profiles debian-preseed",
	"install unset":       "gpupool install unset --rack ams1/r12",
	"accelerator list":    "gpupool accelerator list --server r12s03",
	"repair list":         "gpupool repair list",
	"repair show":         "gpupool repair show rep_01k8",
	"repair done":         "gpupool repair done rep_01k8 --old-serial 1650924 --new-serial 1652231 --note \"swapped\"",
	"job list":            "gpupool job list --state queued",
	"job show":            "gpupool job show train",
	"job why":             "gpupool job why train",
	"job watch":           "gpupool job watch train",
	"job wait":            "gpupool job wait train eval --timeout 2h",
	"job logs":            "gpupool job logs -f train",
	"job cancel":          "gpupool job cancel train",
	"job hold":            "gpupool job hold train",
	"job checkpoint":      "gpupool job checkpoint train",
	"job release":         "gpupool job release train",
	"array list":          "gpupool array list",
	"array show":          "gpupool array show sweep",
	"array cancel":        "gpupool array cancel sweep",
	"array hold":          "gpupool array hold sweep",
	"array release":       "gpupool array release sweep",
	"array limit":         "gpupool array limit sweep 20",
	"spec list":           "gpupool spec list",
	"spec retire":         "gpupool spec retire h100x8",
	"spec delete":         "gpupool spec delete h100x8",
	"queue list":          "gpupool queue list",
	"queue stop":          "gpupool queue stop --spec h100x8 --why 'a driver that loses work' --until +2h",
	"queue start":         "gpupool queue start --spec h100x8",
	"tenant list":         "gpupool tenant list",
	"tenant create":       "gpupool tenant create research --max-priority 100",
	"tenant set":          "gpupool tenant set research --weight 2 --max-running-jobs 500 --max-priority 200",
	"project list":        "gpupool project list research",
	"project create":      "gpupool project create research llm",
	"project set":         "gpupool project set research llm --max-running-jobs 20",
	"window list":         "gpupool window list",
	"window create":       "gpupool window create r1s1 r1s2 --from 2026-12-01T06:00:00Z --until 2026-12-01T10:00:00Z --note 'new firmware'",
	"window delete":       "gpupool window delete win_01k8",
	"quota list":          "gpupool quota list --tenant research",
	"quota set":           "gpupool quota set --tenant research --model nvidia-h100-80gb --limit 64",
	"quota delete":        "gpupool quota delete --tenant research --model nvidia-h100-80gb",
	"budget list":         "gpupool budget list --tenant research",
	"budget set":          "gpupool budget set --tenant research --gpu-hours 5000",
	"budget delete":       "gpupool budget delete bud_01k8",
	"usage audit":         "gpupool usage audit --from 2026-11",
	"usage capacity":      "gpupool usage capacity --every day",
	"usage charging set":  "gpupool usage charging set --launch pool",
	"usage charging show": "gpupool usage charging show",
	"usage focus":         "gpupool usage focus --month 2026-11 --tenant research",
	"usage forecast":      "gpupool usage forecast --days 90\ngpupool usage forecast --simulate --wait 30m",
	"usage live":          "gpupool usage live --tenant research",
	"usage price list":    "gpupool usage price list",
	"usage price set":     "gpupool usage price set h100x8 --per-gpu-hour 2.10 --currency EUR",
	"usage statement":     "gpupool usage statement --month 2026-11 --tenant research",
	"usage trace":         "gpupool usage trace --from 2026-11",
	"token list":          "gpupool token list",
	"token revoke":        "gpupool token revoke ci",
}

// exemplify gives c and what is below it their examples.
func exemplify(c *cobra.Command, path string) {
	if e := examples[path]; e != "" && c.Example == "" {
		c.Example = "  " + e
	}
	for _, sub := range c.Commands() {
		exemplify(sub, path+" "+sub.Name())
	}
}
