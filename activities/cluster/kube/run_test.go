package kube

import (
	"errors"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

func TestWhatVendorsCallTheirDevices(t *testing.T) {
	t.Parallel()
	k := &Kube{cfg: Config{Resources: map[schema.Vendor]string{schema.VendorHuawei: "huawei.com/Ascend910B"}}}
	for model, want := range map[string]core.ResourceName{
		"nvidia-h100-80gb": "nvidia.com/gpu", "amd-mi300x-192gb": "amd.com/gpu", "intel-max-1550": "gpu.intel.com/i915", "intel-gaudi3-128gb": "habana.ai/gaudi", "huawei-ascend910b": "huawei.com/Ascend910B",
	} {
		vendor, _, _ := strings.Cut(model, "-")
		r := cluster.Run{Key: cluster.Key{Job: "job_a", Attempt: 1}, Command: []string{"true"}, Parts: []cluster.Part{{Node: "h1"}}, Vendor: schema.Vendor(vendor), Model: model, Accelerators: 8}
		pod := k.job(r, 0).Spec.Template.Spec
		if n := pod.Containers[0].Resources.Limits[want]; n.Value() != 8 {
			t.Errorf("a job on 8 %s asks for %v, not for %s", model, pod.Containers[0].Resources.Limits, want)
		}
		if n := k.accelerators(&core.Pod{Spec: pod}); n != 8 {
			t.Errorf("a pod of somebody else's with 8 %s counts as %d", model, n)
		}
	}
}

func TestAJobsOwnImage(t *testing.T) {
	t.Parallel()
	k := &Kube{cfg: Config{Image: "pool/base:1"}}
	r := cluster.Run{Key: cluster.Key{Job: "job_a", Attempt: 1}, Command: []string{"true"}, Parts: []cluster.Part{{Node: "h1"}}}
	for image, want := range map[string]string{"": "pool/base:1", "team/train@sha256:0": "team/train@sha256:0"} {
		r.Image = image
		if got := k.job(r, 0).Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("a job with image %q runs in %q, not %q", image, got, want)
		}
	}
	r.Network = "none"
	var e *schema.Error
	if err := k.Submit(t.Context(), r); !errors.As(err, &e) || e.Field != "network" {
		t.Errorf("with a network of its own: %v", err)
	}
}
