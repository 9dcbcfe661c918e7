/* What PyTorch calls of the CUDA runtime to allocate and to capture graphs: memory is the host's, one device, nothing runs. */
#include <stdlib.h>
#include <string.h>
typedef int E;
typedef void *P;
typedef unsigned U;
typedef unsigned long long L;
static int capturing;
static E take(P *p, size_t n) { *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096); return *p ? 0 : 2; }
E cudaGetDeviceCount(int *n) { *n = 1; return 0; }
E cudaGetDevice(int *d) { *d = 0; return 0; }
E cudaSetDevice(int d) { return 0; }
E cudaDriverGetVersion(int *v) { *v = 13020; return 0; }
E cudaRuntimeGetVersion(int *v) { *v = 13020; return 0; }
E cudaGetDeviceProperties(char *p, int d) { memset(p, 0, 1008); strcpy(p, "none"); return 0; }
E cudaDeviceGetAttribute(int *v, int a, int d) { *v = 1; return 0; }
E cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = *b = 0; return 0; }
E cudaDeviceCanAccessPeer(int *c, int a, int b) { *c = 0; return 0; }
E cudaDeviceSynchronize(void) { return 0; }
E cudaMemGetInfo(size_t *f, size_t *t) { *f = 8ull << 30; *t = 16ull << 30; return 0; }
E cudaMalloc(P *p, size_t n) { return take(p, n); }
E cudaFree(P p) { free(p); return 0; }
E cudaHostAlloc(P *p, size_t n, U f) { return take(p, n); }
E cudaFreeHost(P p) { free(p); return 0; }
E cudaPointerGetAttributes(P a, const void *p) { memset(a, 0, 32); return 0; }
E cudaStreamCreateWithPriority(P *s, U f, int p) { static size_t n = 0x1000; *s = (P)(n += 64); return 0; }
E cudaStreamSynchronize(P s) { return 0; }
E cudaStreamQuery(P s) { return 0; }
E cudaStreamWaitEvent(P s, P e, U f) { return 0; }
E cudaEventCreateWithFlags(P *e, U f) { *e = malloc(8); return 0; }
E cudaEventRecord(P e, P s) { return 0; }
E cudaEventQuery(P e) { return 0; }
E cudaEventDestroy(P e) { free(e); return 0; }
E cudaGetLastError(void) { return 0; }
E cudaPeekAtLastError(void) { return 0; }
E cudaThreadExchangeStreamCaptureMode(int *m) { return 0; }
E cudaStreamIsCapturing(P s, int *c) { *c = capturing; return 0; }
E cudaStreamGetCaptureInfo(P s, int *c, L *i, P *g, P d, P e, size_t *n) {
    *c = capturing;
    if (i) *i = 7;
    if (g) *g = (P)1;
    if (n) *n = 0;
    return 0;
}
E cudaStreamGetCaptureInfo_v2(P s, int *c, L *i, P *g, P d, size_t *n) { return cudaStreamGetCaptureInfo(s, c, i, g, d, 0, n); }
E cudaStreamGetCaptureInfo_v3(P s, int *c, L *i, P *g, P d, P e, size_t *n) { return cudaStreamGetCaptureInfo(s, c, i, g, d, e, n); }
E cudaStreamBeginCapture(P s, int m) { capturing = 1; return 0; }
E cudaStreamEndCapture(P s, P *g) { capturing = 0; *g = (P)1; return 0; }
E cudaGraphInstantiate(P *e, P g, L f) { *e = (P)1; return 0; }
E cudaGraphInstantiateWithFlags(P *e, P g, L f) { *e = (P)1; return 0; }
E cudaGraphGetNodes(P g, P n, size_t *c) { *c = 1; return 0; }
E cudaGraphDestroy(P g) { return 0; }
E cudaGraphExecDestroy(P g) { return 0; }
E cudaLaunchKernel(const void *f, L a, U b, L c, U d, P *e, size_t m, P s) { return 0; }
E cudaLaunchKernelExC(P a, const void *f, P *c) { return 0; }
E cudaFuncGetAttributes(int *a, const void *f) { memset(a, 0, 64); a[6] = 1024; return 0; }
E cuInit(U f) { return 0; }
E cuDevicePrimaryCtxGetState(int d, U *f, int *a) { *f = 0; *a = 1; return 0; }
E cuGetProcAddress_v2(const char *s, P *f, int v, L l, int *q) { *f = 0; return 500; }
E cudaGetDriverEntryPointByVersion(const char *s, P *f, U v, L l, int *q) { *f = 0; if (q) *q = 1; return 1; }
E nvmlInit_v2(void) { return 1; }
