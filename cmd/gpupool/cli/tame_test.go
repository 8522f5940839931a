package cli

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

func TestAJobsOutputCantSteerTheTerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain text, ünïcode 世界 🚀\n":                     "plain text, ünïcode 世界 🚀\n",
		"\x1b[1;31mred\x1b[0m \x1b[38:5:9mred\x1b[m\n":   "\x1b[1;31mred\x1b[0m \x1b[38:5:9mred\x1b[m\n", // colours
		"10%\r20%\x1b[K\r\x1b[1G30%\n":                   "10%\r20%\x1b[K\r\x1b[1G30%\n",                 // a progress bar
		"\x1b]0;title\x07":                               "?]0;title?",
		"\x1b]52;c;ZXZpbA==\x1b\\":                       "?]52;c;ZXZpbA==?\\", // the clipboard
		"\x1b[6n\x1b[c\x1bZ\x1b[>q":                      "?[6n?[c?Z?[>q",      // the terminal would type an answer
		"\x1b[2J\x1b[H\x1b[5A\x1b[?1049h\x1bc":           "?[2J?[H?[5A?[?1049h?c",
		"\x1bP+q544e\x1b\\ \x1b_x\x1b\\ \x1b^x\x1b\\":    "?P+q544e?\\ ?_x?\\ ?^x?\\",
		"\u009b6n \u009d0;t\u009c":                       "?6n ?0;t?", // the same in one character
		"a\x00b\x07c\bd\x7f":                             "a?b?c?d?",
		"x\u202egnp.exe":                                 "x?gnp.exe",
		"\xff\xfe":                                       "\ufffd\ufffd",
		"\x1b[" + string(bytes.Repeat([]byte("1"), 100)): "?[" + string(bytes.Repeat([]byte("1"), 100)),
		"\x1b\x1b[31mred":                                "?\x1b[31mred",
		"ends in the middle of a sequence \x1b[3":        "ends in the middle of a sequence ",
		"ends in the middle of a character \xf0\x9f\x9a": "ends in the middle of a character ",
	} {
		for name, from := range map[string]io.Reader{"at once": bytes.NewBufferString(in), "byte by byte": iotest.OneByteReader(bytes.NewBufferString(in))} {
			var out bytes.Buffer
			n, err := io.Copy(&tame{w: &out}, from)
			if err != nil || n != int64(len(in)) {
				t.Errorf("%q %s: %d bytes, %v; want %d", in, name, n, err, len(in))
			}
			if out.String() != want {
				t.Errorf("%q %s: %q, want %q", in, name, out.String(), want)
			}
		}
	}
}
