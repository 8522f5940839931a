package accelerator

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// visibility is how one kind of device is shown to a program, and hidden from it.
type visibility struct {
	show func(given []agentproto.Device) map[string]string
	hide map[string]string
}

// Sources: CUDA C++ Programming Guide "CUDA Environment Variables"; NVIDIA Container Toolkit "Environment variables";
// ROCm "GPU isolation techniques"; Level Zero specification "Environment Variables"; Habana "Managing multi-HPU";
// CANN "ASCEND_RT_VISIBLE_DEVICES".
var visibilities = map[string]visibility{
	"nvidia": {
		func(ds []agentproto.Device) map[string]string {
			// By UUID where it is known: the runtime's order of indexes (fastest first) is not the driver's.
			v := join(ds, func(d agentproto.Device) string {
				if d.UUID != "" {
					return d.UUID
				}
				return strconv.Itoa(d.Index)
			})
			return map[string]string{"CUDA_VISIBLE_DEVICES": v, "NVIDIA_VISIBLE_DEVICES": v}
		},
		map[string]string{"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"},
	},
	"amd": {
		func(ds []agentproto.Device) map[string]string {
			// HIP counts among what ROCR left visible, so its list always begins at 0.
			n := make([]string, len(ds))
			for i := range ds {
				n[i] = strconv.Itoa(i)
			}
			return map[string]string{"ROCR_VISIBLE_DEVICES": indexes(ds), "HIP_VISIBLE_DEVICES": strings.Join(n, ",")}
		},
		// An empty ROCR list hides nothing in some releases; -1 is documented to hide all.
		map[string]string{"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
	},
	"intel": {
		func(ds []agentproto.Device) map[string]string {
			return map[string]string{"ZE_AFFINITY_MASK": indexes(ds)}
		},
		map[string]string{"ZE_AFFINITY_MASK": "-1"},
	},
	"gaudi": {
		func(ds []agentproto.Device) map[string]string {
			return map[string]string{"HABANA_VISIBLE_DEVICES": indexes(ds), "HABANA_VISIBLE_MODULES": indexes(ds)}
		},
		map[string]string{"HABANA_VISIBLE_DEVICES": "", "HABANA_VISIBLE_MODULES": ""},
	},
	"huawei": {
		func(ds []agentproto.Device) map[string]string {
			return map[string]string{"ASCEND_RT_VISIBLE_DEVICES": indexes(ds), "ASCEND_VISIBLE_DEVICES": indexes(ds)}
		},
		map[string]string{"ASCEND_RT_VISIBLE_DEVICES": "", "ASCEND_VISIBLE_DEVICES": ""},
	},
}

func familyOf(d agentproto.Device) string {
	switch {
	case d.Vendor == schema.VendorIntel && strings.Contains(d.Model, "gaudi"):
		return "gaudi"
	default:
		return string(d.Vendor)
	}
}

// Visible is the environment that shows a program the devices it was given, of all that the server has, and hides
// the rest. Devices of a vendor that has no such variable are neither shown nor hidden. apart says that the program has the
// nodes of no other device: then vendors' runtimes number those that are left from 0.
func Visible(given, all []agentproto.Device, apart bool) map[string]string {
	env := map[string]string{}
	groups := map[string][]agentproto.Device{}
	for _, d := range all {
		if v, ok := visibilities[familyOf(d)]; ok {
			maps.Copy(env, v.hide)
		}
	}
	for _, d := range given {
		groups[familyOf(d)] = append(groups[familyOf(d)], d)
	}
	for family, ds := range groups {
		if v, ok := visibilities[family]; ok {
			slices.SortStableFunc(ds, func(a, b agentproto.Device) int { return a.Index - b.Index })
			for i := range ds {
				if apart {
					ds[i].Index = i
				}
			}
			maps.Copy(env, v.show(ds))
		}
	}
	return env
}

func indexes(ds []agentproto.Device) string {
	return join(ds, func(d agentproto.Device) string { return strconv.Itoa(d.Index) })
}

func join(ds []agentproto.Device, f func(agentproto.Device) string) string {
	s := make([]string, len(ds))
	for i, d := range ds {
		s[i] = f(d)
	}
	return strings.Join(s, ",")
}
