// What the small kernels of `test_races.py` are made of.

__device__ unsigned at(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }
__device__ void nothing() { asm volatile("" ::: "memory"); }
__device__ void cluster_barrier() { asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ void open(unsigned bell) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bell) : "memory"); }
__device__ void expect(unsigned bell, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bell), "r"(bytes) : "memory"); }
__device__ void arrive(unsigned bell) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bell) : "memory"); }
__device__ void wait(unsigned bell, int parity) {
    unsigned done = 0;
    while (!done) asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(bell), "r"(parity) : "memory");
}
__device__ void copy_in(unsigned to, const void* from, int bytes, unsigned bell) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(to), "l"(from), "r"(bytes), "r"(bell) : "memory");
}
__device__ unsigned yonder(unsigned here, unsigned other) { unsigned there; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(other)); return there; }
__device__ void send(unsigned to, int value, unsigned bell) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(to), "r"(value), "r"(bell) : "memory");
}
__device__ void ask(unsigned to, const int* from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n\tcp.async.commit_group;" :: "r"(to), "l"(from) : "memory"); }
__device__ void asked() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
__device__ void proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ int fetch(unsigned there) { int value; asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(there) : "memory"); return value; }
