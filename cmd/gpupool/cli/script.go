package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/shlex"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpupool/schema"
)

// directive begins a line of a script that says what the job needs.
const directive = "#GPUPOOL"

// maxScript is the longest script, in bytes: it goes as one argument, and that is the longest a Linux kernel takes.
const maxScript = 128<<10 - 1

// interpreters are how programs take a script's text and its arguments: the option before the text, and whether the
// argument after it is the script's name.
var interpreters = map[string]struct {
	option string
	named  bool
}{
	"sh": {"-c", true}, "bash": {"-c", true}, "dash": {"-c", true}, "ksh": {"-c", true}, "zsh": {"-c", true},
	"python": {"-c", false}, "python3": {"-c", false}, "perl": {"-e", false}, "ruby": {"-e", false},
}

// isScript reports whether the arguments are a script and its own arguments, and not a command after --.
func isScript(cmd *cobra.Command, args []string) bool {
	return len(args) > 0 && cmd.ArgsLenAtDash() != 0
}

// script reads a script's directives into the command's flags, where the command line does not have them itself, and
// gives the command that runs it.
func script(cmd *cobra.Command, args []string) ([]string, error) {
	file := args[0]
	if _, err := os.Stat(file); err != nil {
		return nil, usageError{fmt.Errorf("%s is no file to be submitted as a script; a command stands after --, such as: -- python train.py", file)}
	}
	b, err := readFile(file, nil)
	if err != nil {
		return nil, err
	}
	if len(b) > maxScript {
		return nil, schema.Invalid(file, fmt.Sprintf("%d bytes", len(b)), fmt.Sprintf("at most %d bytes: put it where the job's servers see it, and submit its path", maxScript))
	}
	given := map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var interpreter []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxScript+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		at := fmt.Sprintf("%s:%d", file, n)
		switch rest, ours := strings.CutPrefix(line, directive); {
		case n == 1:
			if interpreter, err = shebang(at, line); err != nil {
				return nil, err
			}
		case ours && (rest == "" || rest[0] == ' ' || rest[0] == '\t'):
			if err := directives(cmd, at, rest, given); err != nil {
				return nil, err
			}
		case line != "" && !strings.HasPrefix(line, "#"):
			goto done // what stands below the first command is the script's own
		}
	}
done:
	if interpreter == nil {
		return nil, schema.Invalid(file+":1", "", "#!/bin/bash or the like")
	}
	how := interpreters[path.Base(interpreter[0])]
	command := append(slices.Clone(interpreter), how.option, string(b))
	if how.named {
		command = append(command, filepath.Base(file))
	}
	return append(command, args[1:]...), nil
}

// shebang is what a script's first line says it is run by.
func shebang(at, line string) ([]string, error) {
	text, ok := strings.CutPrefix(line, "#!")
	words := strings.Fields(text)
	if ok && len(words) > 1 && path.Base(words[0]) == "env" {
		if words = words[1:]; words[0] == "-S" && len(words) > 1 {
			words = words[1:]
		}
	}
	if !ok || len(words) == 0 || interpreters[path.Base(words[0])].option == "" {
		return nil, schema.Invalid(at, line, "#! and one of sh, bash, dash, ksh, zsh, python, python3, perl and ruby, as in #!/bin/bash")
	}
	return words, nil
}

// directives sets the flags of one line.
func directives(cmd *cobra.Command, at, text string, given map[string]bool) error {
	words, err := shlex.Split(text)
	if err != nil {
		return schema.Invalid(at, strings.TrimSpace(text), "flags as on the command line, with quotes that end")
	}
	// A set of its own, so that the command line's flags hold whatever the script says.
	line := pflag.NewFlagSet(at, pflag.ContinueOnError)
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "file" || f.Name == "dry-run" || f.Name == "detach" || f.Name == "help":
		case given[f.Name]:
			ignored := *f
			ignored.Value = discard{f.Value}
			line.AddFlag(&ignored)
		default:
			line.AddFlag(f)
		}
	})
	if err := line.Parse(words); err != nil {
		return &schema.Error{Code: schema.CodeInvalid, Field: at, Message: err.Error(), Hint: "a line " + directive + " has flags of gpupool job submit that say what the job needs"}
	}
	if line.NArg() > 0 {
		return schema.Invalid(at, strings.Join(line.Args(), " "), "flags alone: the command is the script itself")
	}
	return nil
}

// discard is a flag that the command line has: what the script says of it is not taken.
type discard struct{ pflag.Value }

func (discard) Set(string) error { return nil }
