package console

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
)

// version names the embedded files' content, so that a new build's pages never use an old build's files.
var version = func() string {
	h := sha256.New()
	err := fs.WalkDir(files, "static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(path)
		h.Write([]byte(path))
		h.Write(b)
		return err
	})
	if err != nil {
		panic(err) // the files are embedded: a programming error
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}()

func asset(name string) string { return "/static/" + name + "?v=" + version }
