// Package kubetest runs a real Kubernetes control plane for tests: etcd, kube-apiserver, kube-scheduler and
// kube-controller-manager on loopback, ended with the test. Its nodes are kubelets of our own, which speak the real API,
// run a pod's command as a process of this machine, choose devices as a device plugin does and serve logs; see Kubelet.
package kubetest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// BinaryEnv names the kubeup binary; deploy/kube/build.sh makes it, and says where.
const BinaryEnv = "GPUPOOL_TEST_KUBEUP"

// Cluster is a running control plane.
type Cluster struct {
	Kubeconfig string
	API        kubernetes.Interface // as cluster admin

	t      testing.TB
	binary string
	dir    string
	token  string
	ports  []int
	procs  map[string]*proc
}

type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// binary is where the control plane is, or skips.
func binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv(BinaryEnv)
	if path == "" {
		root, err := exec.Command("go", "env", "GOMOD").Output()
		if err == nil {
			out, err := exec.Command(filepath.Join(filepath.Dir(strings.TrimSpace(string(root))), "deploy", "kube", "build.sh"), "--path").Output()
			if err == nil {
				path = strings.TrimSpace(string(out))
			}
		}
	}
	if _, err := os.Stat(path); path == "" || err != nil {
		t.Skip("no Kubernetes control plane is built: `make kube` builds it, once (ten minutes of processor time)")
	}
	return path
}

// Start runs a control plane with a namespace gpupool.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{t: t, binary: binary(t), dir: t.TempDir(), procs: map[string]*proc{}, ports: freePorts(t, 5)}
	t.Cleanup(c.stop)
	for _, d := range []string{"pki", "log"} {
		c.must(os.MkdirAll(filepath.Join(c.dir, d), 0o700))
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	c.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	c.must(err)
	c.must(os.WriteFile(c.path("pki/sa.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	b := make([]byte, 16)
	_, err = rand.Read(b)
	c.must(err)
	c.token = hex.EncodeToString(b)
	c.must(os.WriteFile(c.path("pki/tokens.csv"), []byte(c.token+",admin,admin,system:masters\n"), 0o600))
	c.Kubeconfig = c.path("kubeconfig")
	c.must(os.WriteFile(c.Kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s}}]
users: [{name: u, user: {token: "%s"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.ports[0], c.path("pki/apiserver.crt"), c.token), 0o600))
	c.spawn("etcd", "etcd", c.path("etcd"), fmt.Sprint(c.ports[1]), fmt.Sprint(c.ports[2]))
	c.StartAPI()
	c.StartScheduler(500)
	c.spawn("controller-manager", "controller-manager", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--flex-volume-plugin-dir="+c.path("flex"), "--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", c.ports[4]), "--cert-dir="+c.path("pki"),
		"--service-account-private-key-file="+c.path("pki/sa.key"), "--use-service-account-credentials=false", "--kube-api-qps=500", "--kube-api-burst=500",
		"--controllers=job-controller,deployment-controller,replicaset-controller,garbage-collector-controller,node-lifecycle-controller,pod-garbage-collector-controller,taint-eviction-controller,namespace-controller,ttl-after-finished-controller")
	_, err = c.API.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "gpupool"}}, meta.CreateOptions{})
	c.must(err)
	return c
}

// StartScheduler starts the scheduler, which asks at most qps things of the API server a second.
func (c *Cluster) StartScheduler(qps int) {
	c.t.Helper()
	c.must(os.WriteFile(c.path("scheduler.yaml"), fmt.Appendf(nil, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %s, qps: %d, burst: %[2]d}\n", c.Kubeconfig, qps), 0o600))
	c.spawn("scheduler", "scheduler", "--config="+c.path("scheduler.yaml"), "--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", c.ports[3]), "--cert-dir="+c.path("pki"))
}

// StartAPI starts the API server, on what etcd holds.
func (c *Cluster) StartAPI() {
	c.t.Helper()
	c.spawn("apiserver", "apiserver", fmt.Sprint("--etcd-servers=http://127.0.0.1:", c.ports[1]), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprint("--secure-port=", c.ports[0]), "--cert-dir="+c.path("pki"),
		"--token-auth-file="+c.path("pki/tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--service-account-key-file="+c.path("pki/sa.key"), "--service-account-signing-key-file="+c.path("pki/sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", "--feature-gates=ResourceHealthStatus=true")
	c.await("the API server", func() bool {
		rc, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
		if err != nil {
			return false // its certificate is not made yet
		}
		rc.QPS, rc.Burst = 500, 500
		if c.API, err = kubernetes.NewForConfig(rc); err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		b, err := c.API.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(b) == "ok"
	})
}

// Kill ends apiserver, scheduler or controller-manager as kill -9 does.
func (c *Cluster) Kill(name string) {
	c.t.Helper()
	p := c.procs[name]
	if p == nil {
		c.t.Fatalf("%s does not run", name)
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	delete(c.procs, name)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) spawn(name string, args ...string) {
	c.t.Helper()
	log, err := os.OpenFile(c.path("log/"+name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	c.must(err)
	defer func() { _ = log.Close() }()
	cmd := exec.Command(c.binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.must(cmd.Start())
	p := &proc{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	c.procs[name] = p
}

// stop ends all at once: nothing is kept.
func (c *Cluster) stop() {
	for _, p := range c.procs {
		_ = p.cmd.Process.Kill()
	}
	for _, p := range c.procs {
		<-p.done
	}
	if c.t.Failed() {
		for _, name := range []string{"apiserver", "scheduler", "controller-manager", "etcd"} {
			b, _ := os.ReadFile(c.path("log/" + name + ".log"))
			c.t.Logf("%s:\n%s", name, b[max(0, len(b)-1500):])
		}
	}
}

func (c *Cluster) await(what string, ready func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ready() {
		if time.Now().After(deadline) {
			c.t.Fatalf("Kubernetes: %s not there within two minutes", what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
