package console

import (
	"bytes"
	"io"
	"net/http"
)

// inside sends the generated client's requests to the API's handler in this process, with the credential and the
// origin of the browser's request that they are made for.
type inside struct {
	api  http.Handler
	from *http.Request
}

// carried are the headers that say who asks and from where; the guard decides by them.
var carried = []string{"Cookie", "Authorization", "Origin", "Sec-Fetch-Site", "X-Forwarded-For", "X-Forwarded-Proto"}

func (i inside) Do(r *http.Request) (*http.Response, error) {
	for _, name := range carried {
		if v := i.from.Header.Values(name); len(v) > 0 {
			r.Header[name] = v
		}
	}
	r.Host, r.RemoteAddr, r.TLS, r.RequestURI = i.from.Host, i.from.RemoteAddr, i.from.TLS, r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody // as a server's handler may expect
	}
	a := &answer{header: http.Header{}}
	i.api.ServeHTTP(a, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return &http.Response{
		StatusCode: a.status, Status: http.StatusText(a.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()), Request: r,
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// Flush lets handlers that stream write here too; it is all read at the end.
func (a *answer) Flush() {}
