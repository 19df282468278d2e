// Kernels that overlap: where a chip can do that, one takes its place before the one launched before it has ended. This text stands before
// that of the kernels that use it.

// The next kernel may take its place when all thread blocks of this one have come here, or ended.
__device__ void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The kernel before this one has ended, and what it has written is there. Nothing is read or written before that, but what was there before that
// kernel began, if it did not begin early itself, and memory that it does not use. (Beware of memory that the host has freed and given out again:
// the kernel before may still be reading it.) What is read afterwards must not be declared __restrict__, or the compiler may read it earlier. A kernel
// that takes its place early keeps others from it while it waits: in a chain of them, let the next begin only after this. (Kernels that
// are to run at the same time do otherwise: `recurrence/eights.cu` says why.)
__device__ void wait_for_the_one_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
