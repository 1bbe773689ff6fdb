#pragma GCC diagnostic ignored "-Wmisleading-indentation"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wshadow"
#include "cuda_runtime.h"
#include "emu_control.h"
#include <vector>
#include <deque>
#include <map>
#include <functional>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef USE_UCONTEXT
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN 1
#endif
struct emuOp { std::function<void()> run; emuEvent *wait = nullptr; uint64_t wseq = 0; emuEvent *rec = nullptr; uint64_t rseq = 0; };
struct emuStream { std::deque<emuOp> q; };
struct emuEvent { uint64_t recorded = 0, done = 0; emuStream *s = nullptr; };
extern char __start_emu_shared[] __attribute__((weak)), __stop_emu_shared[] __attribute__((weak));
namespace emu {
uint3 g_tid, g_bid; dim3 g_bdim, g_gdim; char *g_dyn; unsigned g_lin;
static std::recursive_mutex mu;
static int order_ = EMU_FWD, mode_ = EMU_EAGER; static uint64_t seed_ = 1;
static char msg[512]; static cudaError_t sticky = cudaSuccess, last = cudaSuccess;
static uint64_t n_launch, n_thread, n_switch;
static uint64_t rng() { seed_ ^= seed_ << 13; seed_ ^= seed_ >> 7; seed_ ^= seed_ << 17; return seed_; }
// ---- fibers
#ifdef USE_UCONTEXT
typedef ucontext_t Ctx;
static void sw(Ctx *from, Ctx *to) { n_switch++; swapcontext(from, to); }
#else
struct Ctx { void *sp; };
extern "C" void emu_switch(void **save, void *load);
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  endbr64
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
.size emu_switch,.-emu_switch
)");
static void sw(Ctx *from, Ctx *to) { n_switch++; emu_switch(&from->sp, to->sp); }
#endif
struct Fiber { Ctx c; char *stk; uint3 tid; unsigned lin; bool parked; };
enum { STK = 64 << 10 };
static Ctx main_c; static Fiber *cur;
static std::vector<Fiber *> freef;
#ifdef ASAN
static const void *main_stk; static size_t main_sz; static void *main_fake;
#endif
static Work *W; static std::vector<unsigned> ord; static unsigned nxt, exited, bar_arrived; static std::vector<Fiber *> bar_wait; static std::deque<Fiber *> ready;
struct Warp { unsigned arrived, mask; int op; uint64_t v[32]; int src[32]; uint64_t out[32]; unsigned ballot[32]; Fiber *f[32]; };
static std::vector<Warp> warps;
static void to_main() {
#ifdef ASAN
  void *fake; __sanitizer_start_switch_fiber(&fake, main_stk, main_sz);
  Fiber *me = cur; sw(&me->c, &main_c); __sanitizer_finish_switch_fiber(fake, &main_stk, &main_sz);
#else
  Fiber *me = cur; sw(&me->c, &main_c);
#endif
}
static void to_fiber(Fiber *f) {
  cur = f; g_tid = f->tid; g_lin = f->lin;
#ifdef ASAN
  __sanitizer_start_switch_fiber(&main_fake, f->stk, STK); sw(&main_c, &f->c); __sanitizer_finish_switch_fiber(main_fake, nullptr, nullptr);
#else
  sw(&main_c, &f->c);
#endif
}
static void fiber_main() {
#ifdef ASAN
  __sanitizer_finish_switch_fiber(nullptr, &main_stk, &main_sz);
#endif
  for (;;) { W->range(); cur->parked = false; to_main(); }
}
static Fiber *get_fiber() {
  if (!freef.empty()) { Fiber *f = freef.back(); freef.pop_back(); return f; }
  Fiber *f = new Fiber();
  char *m = (char *)mmap(0, STK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mprotect(m, 4096, PROT_NONE); f->stk = m + 4096;
#ifdef USE_UCONTEXT
  getcontext(&f->c); f->c.uc_stack.ss_sp = f->stk; f->c.uc_stack.ss_size = STK; f->c.uc_link = 0; makecontext(&f->c, fiber_main, 0);
#else
  void **sp = (void **)(f->stk + STK); *--sp = 0; *--sp = (void *)fiber_main; for (int i = 0; i < 6; i++) *--sp = 0; f->c.sp = sp;
#endif
  return f;
}
static void park() { Fiber *me = cur; me->parked = true; me->tid = g_tid; me->lin = g_lin; to_main(); }
static void release_bar() { if (bar_arrived && bar_arrived == W->nthreads - exited) { bar_arrived = 0; for (auto *f : bar_wait) ready.push_back(f); bar_wait.clear(); } }
bool next_thread() {
  if (nxt >= W->nthreads) return false;
  unsigned t = ord.empty() ? nxt++ : ord[nxt++];
  g_lin = t; g_tid.x = t % W->b.x; unsigned r = t / W->b.x; g_tid.y = r % W->b.y; g_tid.z = r / W->b.y; return true;
}
void exit_thread() { exited++; if (bar_arrived) release_bar(); }
void sync_block() {
  bar_arrived++;
  if (bar_arrived == W->nthreads - exited) { bar_arrived = 0; for (auto *f : bar_wait) ready.push_back(f); bar_wait.clear(); return; }
  bar_wait.push_back(cur); park();
}
uint64_t warp_xchg(unsigned mask, uint64_t v, int src, int op, int *ballot) {
  unsigned l = g_lin & 31; Warp &w = warps[g_lin >> 5];
  if (!(mask >> l & 1)) { snprintf(msg, sizeof msg, "%s: lane %u not in its own mask %08x", W->name, l, mask); sticky = cudaErrorLaunchFailure; }
  if (!w.arrived) { w.mask = mask; w.op = op; }
  else if (w.mask != mask || w.op != op) { snprintf(msg, sizeof msg, "%s: warp collectives diverge (mask %08x op %d vs mask %08x op %d)", W->name, w.mask, w.op, mask, op); sticky = cudaErrorLaunchFailure; }
  w.v[l] = v; w.src[l] = src; w.arrived |= 1u << l;
  unsigned first = (g_lin & ~31u), cnt = W->nthreads - first, present = cnt >= 32 ? ~0u : (1u << cnt) - 1;
  if ((w.arrived & mask & present) == (mask & present)) {
    unsigned b = 0; for (int i = 0; i < 32; i++) if (w.arrived >> i & 1 && w.v[i] & 1) b |= 1u << i;
    for (int i = 0; i < 32; i++) if (w.arrived >> i & 1) { int s = w.src[i]; w.out[i] = s >= 0 && (w.arrived >> s & 1) ? w.v[s] : op >= 2 && op <= 5 ? 0x7fc0dead7fc0deadull : w.v[i]; w.ballot[i] = b; if (i != (int)l) ready.push_back(w.f[i]); }
    w.arrived = 0;
  } else { w.f[l] = cur; park(); }
  if (ballot) *ballot = (int)w.ballot[l];
  return w.out[l];
}
static void run_block() {
  unsigned n = W->nthreads; nxt = exited = bar_arrived = 0; bar_wait.clear(); ready.clear();
  warps.resize((n + 31) / 32); for (auto &w : warps) w.arrived = 0;
  if (order_ != EMU_FWD) { ord.resize(n); for (unsigned i = 0; i < n; i++) ord[i] = order_ == EMU_REV ? n - 1 - i : i;
    if (order_ == EMU_RAND) for (unsigned i = n - 1; i > 0; i--) std::swap(ord[i], ord[rng() % (i + 1)]); } else ord.clear();
  if (&__start_emu_shared[0] != &__stop_emu_shared[0]) memset(__start_emu_shared, 0xff, __stop_emu_shared - __start_emu_shared); // NaN poison
  if (W->smem) memset(g_dyn, 0xff, W->smem);
  unsigned held = 0;
  for (;;) {
    Fiber *f;
    if (nxt < n) f = get_fiber();
    else if (!ready.empty()) { size_t i = order_ == EMU_RAND ? rng() % ready.size() : order_ == EMU_REV ? ready.size() - 1 : 0; f = ready[i]; if (i == 0) ready.pop_front(); else { ready[i] = ready.back(); ready.pop_back(); } held--; }
    else break;
    to_fiber(f);
    if (f->parked) { held++; f->parked = false; } else freef.push_back(f);
  }
  n_thread += n;
  if (exited != n) { if (!sticky) { snprintf(msg, sizeof msg, "%s: deadlock in block (%u,%u,%u): %u of %u threads wait at __syncthreads, %u exited, %u wait elsewhere", W->name, g_bid.x, g_bid.y, g_bid.z, bar_arrived, n, exited, n - exited - bar_arrived); } sticky = cudaErrorLaunchFailure; /* the parked fibers are leaked */ }
}
static void run_work(Work *w) {
  n_launch++;
  if (sticky) return;
  W = w; g_bdim = w->b; g_gdim = w->g;
  static char *dyn; static size_t dyncap; if (w->smem > dyncap) { free(dyn); dyn = (char *)aligned_alloc(64, (w->smem + 63) & ~63ul); dyncap = w->smem; } g_dyn = dyn;
#ifdef ASAN
  if (dyn) { __asan_unpoison_memory_region(dyn, dyncap); __asan_poison_memory_region(dyn + w->smem, dyncap - w->smem); }
#endif
  uint64_t nb = (uint64_t)w->g.x * w->g.y * w->g.z;
  for (uint64_t i = 0; i < nb && !sticky; i++) { uint64_t b = order_ == EMU_REV ? nb - 1 - i : i; g_bid.x = b % w->g.x; g_bid.y = b / w->g.x % w->g.y; g_bid.z = b / w->g.x / w->g.y; run_block(); }
}
static emuStream null_stream;
static std::vector<emuStream *> streams{&null_stream};
static void run_one(emuStream *s);
static void drain_to(emuEvent *e, uint64_t seq) { while (e->done < seq && e->s && !e->s->q.empty()) run_one(e->s); }
static void run_one(emuStream *s) {
  emuOp op = std::move(s->q.front()); s->q.pop_front();
  if (op.wait) drain_to(op.wait, op.wseq);
  if (op.run) op.run();
  if (op.rec && op.rec->done < op.rseq) op.rec->done = op.rseq;
}
static void drain(emuStream *s) { while (!s->q.empty()) run_one(s); }
static cudaError_t push(emuStream *s, emuOp op) { if (!s) s = &null_stream; s->q.push_back(std::move(op)); if (mode_ == EMU_EAGER) drain(s); return sticky; }
cudaError_t submit(Work *w, cudaStream_t s) {
  std::lock_guard<std::recursive_mutex> l(mu);
  if (!w->nthreads || w->nthreads > 1024 || w->smem > 48 * 1024 || !w->g.x || !w->g.y || !w->g.z || w->g.y > 65535 || w->g.z > 65535) { delete w; return last = cudaErrorInvalidConfiguration; }
  emuOp op; op.run = [w] { run_work(w); delete w; }; return push(s, std::move(op));
}
static std::map<char *, size_t> allocs; static size_t used, limit = (size_t)1 << 30; static long fail_after = -1;
static size_t rnd(size_t n) { return (n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1); }
}
namespace emu { cudaError_t enqueue(cudaStream_t s, void (*fn)(void *), void *arg) { std::lock_guard<std::recursive_mutex> l(mu); emuOp op; op.run = [=] { fn(arg); }; return push(s, std::move(op)); } }
using namespace emu;
#define LOCK std::lock_guard<std::recursive_mutex> l_(mu)
extern "C" {
void emu_set_order(int o, uint64_t s) { order_ = o; seed_ = s ? s : 1; }
void emu_set_mode(int m) { mode_ = m; }
void emu_set_mem_limit(size_t b) { limit = b; }
void emu_fail_malloc_after(long n) { fail_after = n; }
const char *emu_last_message(void) { return msg; }
void emu_stats(uint64_t *a, uint64_t *b, uint64_t *c) { *a = n_launch; *b = n_thread; *c = n_switch; }
void emu_reset_error(void) { sticky = last = cudaSuccess; msg[0] = 0; }
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaMalloc(void **p, size_t n) { LOCK; *p = 0; if (fail_after >= 0 && fail_after-- == 0) return last = cudaErrorMemoryAllocation;
  if (used + rnd(n) > limit) return last = cudaErrorMemoryAllocation; char *q = (char *)aligned_alloc(256, (n + 255) & ~255ul); memset(q, 0xff, n);
#ifdef ASAN
  __asan_poison_memory_region(q + n, ((n + 255) & ~255ul) - n);
#endif
  allocs[q] = n; used += rnd(n); *p = q; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { LOCK; for (auto *s : streams) drain(s); return sticky; }
cudaError_t cudaFree(void *p) { LOCK; if (!p) return cudaSuccess; cudaDeviceSynchronize(); auto i = allocs.find((char *)p); if (i == allocs.end()) return last = cudaErrorInvalidDevicePointer; used -= rnd(i->second);
#ifdef ASAN
  __asan_unpoison_memory_region(p, (i->second + 255) & ~255ul);
#endif
  allocs.erase(i); free(p); return cudaSuccess; }
cudaError_t cudaMallocHost(void **p, size_t n) { *p = malloc(n); return *p ? cudaSuccess : cudaErrorMemoryAllocation; }
cudaError_t cudaFreeHost(void *p) { free(p); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) { *f = limit - used; *t = limit; return cudaSuccess; }
static bool in_dev(const void *p, size_t n); extern "C++" bool emu::in_device(const void *p, size_t n) { LOCK; return in_dev(p, n); }
static bool in_dev(const void *p, size_t n) { auto i = allocs.upper_bound((char *)p); if (i == allocs.begin()) return false; --i; return (char *)p + n <= i->first + i->second; }
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t st) { LOCK;
  bool dd = k == cudaMemcpyHostToDevice || k == cudaMemcpyDeviceToDevice, sd = k == cudaMemcpyDeviceToHost || k == cudaMemcpyDeviceToDevice;
  if (k != cudaMemcpyDefault && (dd != in_dev(d, n) || sd != in_dev(s, n))) { snprintf(msg, sizeof msg, "cudaMemcpy: kind %d does not match the pointers (dst %s, src %s, %zu bytes)", k, in_dev(d, n) ? "device" : "host/out of range", in_dev(s, n) ? "device" : "host/out of range", n); return last = cudaErrorInvalidValue; }
  emuOp op; op.run = [=] { memmove(d, s, n); }; return push(st, std::move(op)); }
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, cudaMemcpyKind k) { LOCK; cudaError_t e = cudaMemcpyAsync(d, s, n, k, 0); if (!e) drain(&null_stream); return e ? e : sticky; }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t st) { LOCK; if (!in_dev(d, n)) return last = cudaErrorInvalidValue; emuOp op; op.run = [=] { memset(d, v, n); }; return push(st, std::move(op)); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { LOCK; *s = new emuStream; streams.push_back(*s); return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { LOCK; drain(s); for (auto &x : streams) if (x == s) { x = streams.back(); streams.pop_back(); break; } delete s; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { LOCK; drain(s ? s : &null_stream); return sticky; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { *e = new emuEvent; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaSuccess; } // spike: leaked; real: refcount, must NOT drain
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { LOCK; e->s = s ? s : &null_stream; emuOp op; op.rec = e; op.rseq = ++e->recorded; return push(s, std::move(op)); }
cudaError_t cudaEventQuery(cudaEvent_t e) { LOCK; return e->done == e->recorded ? sticky : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { LOCK; drain_to(e, e->recorded); return sticky; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) { LOCK; emuOp op; op.wait = e; op.wseq = e->recorded; return push(s, std::move(op)); }
cudaError_t cudaGetLastError(void) { cudaError_t e = sticky ? sticky : last; last = cudaSuccess; return e; }
const char *cudaGetErrorString(cudaError_t e) { return e == 0 ? "no error" : e == 2 ? "out of memory" : e == 719 ? "unspecified launch failure" : e == 100 ? "no CUDA-capable device is detected" : "error"; }
}

extern "C" {
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) { memset(p, 0, sizeof *p); snprintf(p->name, sizeof p->name, "emulated device"); p->totalGlobalMem = limit; p->sharedMemPerBlock = 48 << 10; p->multiProcessorCount = 1; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
const char *rle_emu_control(const char *) { return nullptr; }
}
