// A libnvidia-ml.so.1 for tests: 8 devices, with what FAKE_NVML names wrong with them (lost=3 hang=5 old mig=2 ...).
// With -DHEALTHY nothing is wrong with any of them, and their serials are of the machine. Signatures follow NVIDIA's nvml.h (API reference, "Device Queries").
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };
#ifdef HEALTHY
#define ODD(x) 0
#else
#define ODD(x) (x)
#endif
typedef struct D { int i; } *Dev;
static struct D d[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

// is reports whether FAKE_NVML says name=i.
static int is(const char *name, int i) {
	char want[64];
	const char *f = getenv("FAKE_NVML");
	snprintf(want, sizeof want, "%s=%d", name, i);
	return f && strstr(f, want);
}
static R ask(Dev x) {
	if (is("hang", x->i)) sleep(3600);
	return is("lost", x->i) ? LOST : OK;
}

R nvmlInit_v2(void) { return is("noinit", 1) ? 9 : OK; }
R nvmlInitWithFlags(unsigned f) { return nvmlInit_v2(); }
R nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(R r) { return r == LOST ? "GPU is lost" : "fake"; }
R nvmlSystemGetDriverVersion(char *b, unsigned n) { snprintf(b, n, "570.86.15"); return OK; }
R nvmlDeviceGetCount_v2(unsigned *n) { *n = 8; return OK; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, Dev *o) { if (i > 7) return NOT_FOUND; *o = &d[i]; return OK; }
R nvmlDeviceGetName(Dev x, char *b, unsigned n) { snprintf(b, n, "NVIDIA H100 80GB HBM3"); return OK; }
#ifdef HEALTHY
// name is the machine's own serial: no two machines may have the same devices.
static const char *name(void) {
	static char s[64];
	FILE *f = s[0] ? NULL : fopen("/sys/class/dmi/id/product_serial", "r");
	if (f && fgets(s, sizeof s, f)) s[strcspn(s, "\n")] = 0;
	if (f) fclose(f);
	return s;
}
R nvmlDeviceGetUUID(Dev x, char *b, unsigned n) { snprintf(b, n, "GPU-%s-%d", name(), x->i); return OK; }
R nvmlDeviceGetSerial(Dev x, char *b, unsigned n) { snprintf(b, n, "%s-GPU%d", name(), x->i); return OK; }
#else
R nvmlDeviceGetUUID(Dev x, char *b, unsigned n) { snprintf(b, n, "GPU-%d", x->i); return OK; }
R nvmlDeviceGetSerial(Dev x, char *b, unsigned n) { snprintf(b, n, "16500000%d", x->i); return OK; }
#endif
R nvmlDeviceGetVbiosVersion(Dev x, char *b, unsigned n) { snprintf(b, n, "96.00.89"); return OK; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char busid[32]; };
R nvmlDeviceGetPciInfo_v3(Dev x, struct pci *p) {
	memset(p, 0, sizeof *p); p->bus = 0x1b + x->i; return OK;
}
struct mem { unsigned long long total, free, used; };
R nvmlDeviceGetMemoryInfo(Dev x, struct mem *m) { R r = ask(x); m->total = 81559ULL << 20; m->used = 1ULL << 30; m->free = m->total - m->used; return r; }
R nvmlDeviceGetTemperature(Dev x, int s, unsigned *t) { *t = 40 + x->i; return ask(x); }
R nvmlDeviceGetTemperatureThreshold(Dev x, int s, unsigned *t) { *t = 87; return ask(x); }
R nvmlDeviceGetPowerUsage(Dev x, unsigned *p) { *p = 71500; return ask(x); }
R nvmlDeviceGetEnforcedPowerLimit(Dev x, unsigned *p) { *p = 700000; return ask(x); }
R nvmlDeviceGetClockInfo(Dev x, int k, unsigned *c) { *c = 1980; return ask(x); }
R nvmlDeviceGetPcieReplayCounter(Dev x, unsigned *c) { *c = ODD(3); return ask(x); }
R nvmlDeviceGetCurrPcieLinkGeneration(Dev x, unsigned *c) { *c = 5; return ask(x); }
R nvmlDeviceGetMaxPcieLinkGeneration(Dev x, unsigned *c) { *c = 5; return ask(x); }
R nvmlDeviceGetCurrPcieLinkWidth(Dev x, unsigned *c) { *c = ODD(x->i == 1) ? 8 : 16; return ask(x); }
R nvmlDeviceGetMaxPcieLinkWidth(Dev x, unsigned *c) { *c = 16; return ask(x); }
struct util { unsigned gpu, memory; };
R nvmlDeviceGetUtilizationRates(Dev x, struct util *u) { u->gpu = 37; u->memory = 5; return is("mig", x->i) ? NOT_SUPPORTED : ask(x); }
R nvmlDeviceGetTotalEccErrors(Dev x, int type, int window, unsigned long long *n) { *n = ODD(type == 1 ? (window ? 12 : 2) : 40); return ask(x); }
#ifndef OLD
R nvmlDeviceGetRemappedRows(Dev x, unsigned *c, unsigned *u, unsigned *p, unsigned *f) { *c = ODD(1); *u = ODD(2); *p = ODD(1); *f = 0; return is("mig", x->i) ? NOT_SUPPORTED : ask(x); }
struct sram { unsigned version; unsigned long long counts[11]; unsigned exceeded; };
R nvmlDeviceGetSramEccErrorStatus(Dev x, struct sram *s) { if (s->version != (sizeof *s | 1u << 24)) return 25; s->exceeded = is("sram", x->i); return ask(x); }
R nvmlDeviceGetTotalEnergyConsumption(Dev x, unsigned long long *e) { *e = 5000000; return ask(x); }
#endif
R nvmlDeviceGetCurrentClocksThrottleReasons(Dev x, unsigned long long *w) { *w = ODD(x->i == 4) ? 0x40 : 0x1; return ask(x); }
R nvmlDeviceGetNvLinkState(Dev x, unsigned l, unsigned *s) { if (l > 17) return 2; *s = !ODD(x->i == 6 && l == 9); return ask(x); }
R nvmlDeviceGetNvLinkErrorCounter(Dev x, unsigned l, int c, unsigned long long *n) { *n = 0; return ask(x); }
