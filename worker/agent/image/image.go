// Package image brings container images onto a server through its containerd, and tells how their files are mounted.
//
// containerd pulls, checks, unpacks and shares layers between images; it starts nothing here: a job in an image runs in
// the same sandbox as any other (worker/agent/sandbox), with the image's files as its root.
//
// Invariant: what a job has of an image is a read-only view of its own, leased until Drop, so that nobody removes layers under
// it. Not here: when images are brought, and who waits for it (worker/agent).
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"gpupool/worker/agent/sandbox"
)

// Namespace is where this agent's images and views are, apart from those of others who use the same containerd.
const Namespace = "gpupool"

// Address is containerd's usual socket.
const Address = "/run/containerd/containerd.sock"

// Store is a server's images.
type Store struct {
	client      *containerd.Client
	snapshotter string
}

// Open reaches containerd at a socket; empty = Address. It need not answer yet.
func Open(address string) (*Store, error) {
	if address == "" {
		address = Address
	}
	c, err := containerd.New(address, containerd.WithDefaultNamespace(Namespace))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", address, err)
	}
	return &Store{client: c, snapshotter: "overlayfs"}, nil
}

// Close ends the connection.
func (s *Store) Close() error { return s.client.Close() }

// View is how a job sees an image.
type View struct {
	Root    []sandbox.Layer
	Env     []string // NAME=value
	WorkDir string
}

// Normal is a reference as containerd keeps it: with its host, and with a tag where it has neither tag nor digest.
func Normal(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	return named.String(), nil
}

// answersWithin is how long containerd may take to say that it is there.
const answersWithin = 5 * time.Second

// Get has the image on the server: as it is there already, or pulled. Where it is there under a tag that has moved since, the
// older one is used: a job that wants certain bits names their digest.
func (s *Store) Get(ctx context.Context, ref string) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	name, err := Normal(ref)
	if err != nil {
		return err
	}
	// One that is not there would be waited for, and the job with it.
	soon, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	if ok, err := s.client.IsServing(soon); !ok && ctx.Err() == nil {
		return fmt.Errorf("image %s: containerd does not answer: is it installed and running? (%w)", ref, err)
	}
	img, err := s.client.GetImage(ctx, name)
	if errdefs.IsNotFound(err) {
		if _, err = s.client.Pull(ctx, name, containerd.WithPullUnpack, containerd.WithPullSnapshotter(s.snapshotter)); err != nil {
			return fmt.Errorf("image %s could not be pulled: %w", ref, plain(err))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, plain(err))
	}
	if err := img.Unpack(ctx, s.snapshotter); err != nil {
		return fmt.Errorf("image %s could not be unpacked: %w", ref, plain(err))
	}
	return nil
}

// plain is an error without what only programs want to know of it.
func plain(err error) error {
	if errdefs.IsUnavailable(err) {
		return errors.New("containerd does not answer: is it installed and running?")
	}
	return err
}

// Show makes a view of an image that is there, under a key of the job's own. Showing it again is the same view.
func (s *Store) Show(ctx context.Context, key, ref string) (View, error) {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	name, err := Normal(ref)
	if err != nil {
		return View{}, err
	}
	img, err := s.client.GetImage(ctx, name)
	if err != nil {
		return View{}, fmt.Errorf("image %s: %w", ref, plain(err))
	}
	config, err := configOf(ctx, img)
	if err != nil {
		return View{}, fmt.Errorf("image %s: its configuration: %w", ref, err)
	}
	layers, err := img.RootFS(ctx)
	if err != nil {
		return View{}, fmt.Errorf("image %s: %w", ref, err)
	}
	chain := identity.ChainID(layers).String()
	// A lease of its own keeps the view, and by it the layers, until Drop.
	if _, err := s.client.LeasesService().Create(ctx, leases.WithID(key)); err != nil && !errdefs.IsAlreadyExists(err) {
		return View{}, plain(err)
	}
	ctx = leases.WithLease(ctx, key)
	snapshots := s.client.SnapshotService(s.snapshotter)
	mounts, err := snapshots.View(ctx, key, chain)
	if errdefs.IsAlreadyExists(err) {
		mounts, err = snapshots.Mounts(ctx, key)
	}
	if err != nil {
		return View{}, errors.Join(fmt.Errorf("image %s can't be shown: %w", ref, plain(err)), s.Drop(context.WithoutCancel(ctx), key))
	}
	v := View{Env: config.Env, WorkDir: config.WorkingDir}
	for _, m := range mounts {
		v.Root = append(v.Root, layer(m))
	}
	return v, nil
}

// configOf reads what the image says of the programs in it.
func configOf(ctx context.Context, img containerd.Image) (ocispec.ImageConfig, error) {
	d, err := img.Config(ctx)
	if err != nil {
		return ocispec.ImageConfig{}, err
	}
	b, err := content.ReadBlob(ctx, img.ContentStore(), d)
	if err != nil {
		return ocispec.ImageConfig{}, err
	}
	var i ocispec.Image
	return i.Config, json.Unmarshal(b, &i)
}

// flags are the words of mount(8) that mount(2) takes as bits; all others are the file system's own.
var flags = map[string]uintptr{"ro": unix.MS_RDONLY, "bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noatime": unix.MS_NOATIME, "rw": 0}

func layer(m mount.Mount) sandbox.Layer {
	l := sandbox.Layer{Type: m.Type, Source: m.Source}
	var data []string
	for _, o := range m.Options {
		if f, ok := flags[o]; ok {
			l.Flags |= f
		} else {
			data = append(data, o)
		}
	}
	if m.Type == "bind" {
		l.Type = ""
	}
	l.Data = strings.Join(data, ",")
	return l
}

// Drop ends a view. One that is not there is no error.
func (s *Store) Drop(ctx context.Context, key string) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	if err := s.client.SnapshotService(s.snapshotter).Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
		return plain(err)
	}
	if err := s.client.LeasesService().Delete(ctx, leases.Lease{ID: key}); err != nil && !errdefs.IsNotFound(err) {
		return plain(err)
	}
	return nil
}

// Import takes images from an archive (docker save, or an OCI layout in a tar) and returns their names.
func (s *Store) Import(ctx context.Context, archive io.Reader) ([]string, error) {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	all, err := s.client.Import(ctx, archive, containerd.WithIndexName(""))
	if err != nil {
		return nil, fmt.Errorf("the archive could not be imported: %w", plain(err))
	}
	var names []string
	for _, i := range all {
		if _, err := digest.Parse(i.Name); err == nil {
			continue
		}
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names, nil
}

// Version asks containerd itself.
func (s *Store) Version(ctx context.Context) (string, error) {
	v, err := s.client.Version(namespaces.WithNamespace(ctx, Namespace))
	if err != nil {
		return "", plain(err)
	}
	return v.Version, nil
}
