"""Prints the UUIDs of the GPUs that a process sees, a line each; with an argument, sees that it can use them, too.

A script, not a module: it asks the CUDA driver and imports nothing of ours, so it takes no seconds, and leaves the process that
wants to know without CUDA.
"""

import ctypes
import sys
import uuid


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(text))
            sys.exit(f"{name}: {(text.value or b'').decode() or f'error {code}'}")

    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        device, name, context = ctypes.c_int(), ctypes.create_string_buffer(16), ctypes.c_void_p()
        call("cuDeviceGet", ctypes.byref(device), number)
        call("cuDeviceGetUuid", name, device)
        if len(sys.argv) > 1:
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        print(f"GPU-{uuid.UUID(bytes=name.raw)}")


if __name__ == "__main__":
    main()
