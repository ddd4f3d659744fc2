/* A CUDA runtime for GPUs that aren't there, preloaded in front of torch's own libcudart. Memory of
   a GPU is memory of this process; nothing is computed here: a kernel that is launched is an error.

   PRETENDED_GPUS    how many there are
   PRETENDED_MEMORY  bytes of each
   PRETENDED_LEDGER  a file in which all processes note what they took, as they share the GPUs */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST 64        /* GPUs */
#define PROCESSES 1024 /* of a rehearsal, those that have ended included; memory.py reads them */
#define OK return cudaSuccess

static size_t number(const char *name, size_t otherwise) {
  char *text = getenv(name);
  return text ? strtoull(text, 0, 10) : otherwise;
}
static size_t total(void) { return number("PRETENDED_MEMORY", (size_t)16 << 30); }

static char lock_;
static void lock(void) { while (__atomic_test_and_set(&lock_, __ATOMIC_ACQUIRE)) usleep(10); }
static void unlock(void) { __atomic_clear(&lock_, __ATOMIC_RELEASE); }

/* ---- Which GPUs does this process see? Read once, as CUDA does. ---- */
static _Thread_local int current;
static int visible[MOST], seen = -1;

static int count(void) {
  lock();
  if (seen < 0) {
    int all = number("PRETENDED_GPUS", 2), n = 0;
    char *list = getenv("CUDA_VISIBLE_DEVICES"), *end;
    if (all > MOST) all = MOST;
    if (!list) for (; n < all; n++) visible[n] = n;
    else for (; n < MOST; list = end + 1) {
      long gpu = strtol(list, &end, 10);
      if (end == list || gpu < 0 || gpu >= all) break; /* the rest isn't seen, either */
      visible[n++] = gpu;
      if (*end != ',') break;
    }
    seen = n;
  }
  unlock();
  return seen;
}
int pretended_gpu(int device) { return device < count() ? visible[device] : -1; }

/* ---- The ledger: who has taken how much of which GPU ---- */
struct entry { long pid; size_t used[MOST], peak[MOST]; };
static struct entry *ledger;
static int file = -1;

static void open_ledger(void) {
  char *name = getenv("PRETENDED_LEDGER");
  size_t size = PROCESSES * sizeof *ledger;
  file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
  if (file >= 0 && ftruncate(file, size)) file = -1;
  ledger = mmap(0, size, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (ledger == MAP_FAILED) perror("rehearse: no ledger of the GPUs' memory"), _exit(2);
}

/* What all have taken of a GPU, after this process has taken size more (or given back, if less than
   0); if that is more than there is, nothing is taken. A process that is dead has nothing. */
static size_t take(int gpu, long size) {
  size_t all = 0;
  struct entry *own = 0;
  long pid = getpid();
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  lock();
  if (!ledger) open_ledger();
  if (file >= 0) while (fcntl(file, F_SETLKW, &whole) && errno == EINTR); /* ends with its process */
  struct entry *e = ledger;
  for (; e < ledger + PROCESSES && e->pid; e++) {
    if (e->pid == pid) own = e;
    else if (kill(e->pid, 0) && errno == ESRCH) memset(e->used, 0, sizeof e->used);
    all += e->used[gpu];
  }
  if (!own && e < ledger + PROCESSES) own = e, own->pid = pid;
  if (own && size < 0) {
    size_t back = -size < own->used[gpu] ? -size : own->used[gpu]; /* a fork frees its parent's */
    own->used[gpu] -= back, all -= back;
  } else if (own) {
    all += size;
    if (all <= total()) {
      own->used[gpu] += size;
      if (own->used[gpu] > own->peak[gpu]) own->peak[gpu] = own->used[gpu];
    }
  }
  whole.l_type = F_UNLCK;
  if (file >= 0) fcntl(file, F_SETLK, &whole);
  unlock();
  return all;
}

/* ---- Memory. Whose is this pointer? A list will do: torch asks for few, large blocks. ---- */
static struct block { char *at; size_t size; int gpu; struct block *next; } *blocks;

/* Rather an error here than a machine that swaps, or ends some process for want of memory. */
static int machine_has(size_t size) {
  size_t kib = 0;
  char line[128];
  FILE *info = size < (64 << 20) ? 0 : fopen("/proc/meminfo", "r");
  if (!info) return 1;
  while (fgets(line, sizeof line, info) && !sscanf(line, "MemAvailable: %zu", &kib));
  fclose(info);
  if (!kib || size + (256 << 20) < kib << 10) return 1;
  fprintf(stderr, "rehearse: this machine itself has no %zu MiB left for a pretended GPU\n", size >> 20);
  return 0;
}

static cudaError_t add(void **p, size_t size, int gpu) {
  if (!machine_has(size)) return cudaErrorMemoryAllocation;
  if (gpu >= 0 && take(gpu, size) > total()) return cudaErrorMemoryAllocation;
  struct block *b = malloc(sizeof *b);
  if (posix_memalign(p, 512, size ? size : 1)) {
    if (gpu >= 0) take(gpu, -(long)size);
    free(b);
    return cudaErrorMemoryAllocation;
  }
  if (gpu >= 0) memset(*p, 0xFF, size); /* NaN: fresh memory holds no zeros */
  *b = (struct block){*p, size, gpu, 0};
  lock(); b->next = blocks; blocks = b; unlock();
  OK;
}

static cudaError_t del(void *p) {
  struct block *gone = 0;
  lock();
  for (struct block **b = &blocks; *b && !gone; b = gone ? b : &(*b)->next)
    if ((*b)->at == p) gone = *b, *b = gone->next;
  unlock();
  if (gone && gone->gpu >= 0) take(gone->gpu, -(long)gone->size);
  free(gone), free(p);
  OK;
}

static int mine(void) { return pretended_gpu(current); }
cudaError_t cudaMalloc(void **p, size_t n) { return count() ? add(p, n, mine()) : cudaErrorNoDevice; }
cudaError_t cudaFree(void *p) { return p ? del(p) : cudaSuccess; }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { return add(p, n, -1); }
cudaError_t cudaMallocHost(void **p, size_t n) { return add(p, n, -1); }
cudaError_t cudaFreeHost(void *p) { return p ? del(p) : cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) {
  size_t used = take(mine(), 0);
  *t = total(), *f = used < *t ? *t - used : 0;
  OK;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered, a->device = -1;
  count();
  lock();
  for (struct block *b = blocks; b; b = b->next)
    if (b->at <= (char *)p && (char *)p < b->at + b->size) {
      a->type = b->gpu < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice, a->device = 0;
      for (int d = 0; d < seen; d++) if (visible[d] == b->gpu) a->device = d;
    }
  unlock();
  OK;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) { memmove(to, from, n); OK; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) { memmove(to, from, n); OK; }
cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) { memmove(to, from, n); OK; }
cudaError_t cudaMemset(void *p, int v, size_t n) { memset(p, v, n); OK; }
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) { memset(p, v, n); OK; }

/* ---- Devices ---- */
static int is_device(int d) { return d >= 0 && d < count(); }
cudaError_t cudaGetDeviceCount(int *n) { *n = count(); return *n ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaGetDevice(int *d) { *d = current; OK; }
cudaError_t cudaSetDevice(int d) { if (!is_device(d)) return cudaErrorInvalidDevice; current = d; OK; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  if (!is_device(d)) return cudaErrorInvalidDevice;
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "pretended GPU");
  p->totalGlobalMem = total(), p->major = 9, p->minor = 0, p->multiProcessorCount = 8;
  p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048;
  p->pciBusID = pretended_gpu(d) + 1, p->uuid.bytes[15] = pretended_gpu(d) + 1;
  OK;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) { *v = 0; OK; }
cudaError_t cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 0; OK; }
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02x:00.0", pretended_gpu(d) + 1); OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; OK; }
cudaError_t cudaDeviceSynchronize(void) { OK; }
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; OK; }
static _Thread_local cudaError_t last;
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = 0; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }

/* ---- Streams and events: what is asked for is done at once ---- */
cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = malloc(1); OK; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { *s = malloc(1); OK; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { *s = malloc(1); OK; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { OK; }
cudaError_t cudaStreamQuery(cudaStream_t s) { OK; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { OK; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { OK; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; OK; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) { *c = cudaStreamCaptureStatusNone; OK; }
#if CUDART_VERSION < 13000
#define MORE
#else
#define MORE const cudaGraphEdgeData **e,
#endif
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c, unsigned long long *id, cudaGraph_t *g, const cudaGraphNode_t **n, MORE size_t *k) { *c = cudaStreamCaptureStatusNone; OK; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { OK; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { *e = calloc(1, sizeof(struct timespec)); OK; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); OK; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { clock_gettime(CLOCK_MONOTONIC, (void *)e); OK; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return cudaEventRecord(e, s); }
cudaError_t cudaEventQuery(cudaEvent_t e) { OK; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { OK; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  struct timespec *s = (void *)a, *e = (void *)b;
  *ms = 1e3 * (e->tv_sec - s->tv_sec) + 1e-6 * (e->tv_nsec - s->tv_nsec);
  OK;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) {
  fputs("rehearse: a pretended GPU has no CUDA graphs; do without them here.\n", stderr);
  return cudaErrorNotSupported;
}

/* ---- Kernels: torch's operators never get here, as kernels.py computes them ---- */
static cudaError_t kernel(void) {
  static int told;
  if (!told++)
    fputs("rehearse: a CUDA kernel was launched that no operator of torch stands for: an extension's, or "
          "one that torch.compile made. A pretended GPU can't run it; do without it here.\n", stderr);
  return last = cudaErrorNotSupported;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return kernel(); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return kernel(); }
cudaError_t __cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return kernel(); }

/* The driver: torch opens libcuda.so.1 by name, and this file says that it is it. */
int cuInit(unsigned f) { return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active) { *active = 1; return 0; }
