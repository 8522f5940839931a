package schema_test

import (
	"testing"

	"gpupool/schema"
)

func TestURLsThatCouldBeReached(t *testing.T) {
	t.Parallel()
	for s, right := range map[string]bool{
		"http://deb.debian.org/debian": true, "https://gpupool.example.net": true, "http://10.20.0.2:8081": true, "http://[2001:db8::2]:8080/files": true,
		"http://[::1]": true, "https://[fe80::1%25eno1]": true, "http://r12_s03:80/": true, "http://localhost": true, "HTTPS://Host.": true, "http://h/a%20b": true, "http://1password.example": true, "https://bücher.example": true,

		"": false, "host": false, "host:80": false, "//host": false, "ftp://host": false, "http:host": false, "http://": false, "http:///path": false,
		"http://[::1": false, "http://::1": false, "http://[::1]x": false, "http://[zz]": false, "http://[1.2.3.4]": false, "http://]": false,
		"http://:80": false, "http://h:": false, "http://h:0": false, "http://h:65536": false, "http://h:x": false,
		"http://256.1.1.1": false, "http://1.2.3": false, "http://a..b": false, "http://.a": false, "http://-": false, "http://a-.b": false, "http://a;b": false, "http://$(x)": false, "http://h,i": false,
		"http://user@h": false, "http://u:p@h": false, "http://h?": false, "http://h/?a=b": false, "http://h#": false, "http://h/#f": false, "http://h/a b": false, "http://h/\n": false, " http://h": false,
	} {
		if _, ok := schema.ParseURL(s); ok != right {
			t.Errorf("%q: taken: %v, want %v", s, ok, right)
		}
	}
}
