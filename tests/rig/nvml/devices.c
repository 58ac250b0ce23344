/* What there is: the system, the GPUs, their slices and the processes on them. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

API const char *nvmlErrorString(int result) {
    switch (result) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case TIMEOUT:
        return "Timeout";
    case GPU_IS_LOST:
        return "GPU is lost";
    case LIBRARY_MISMATCH:
        return "Driver/library version mismatch";
    case UNKNOWN:
        return "Unknown Error";
    default:
        return "Unknown Error code";
    }
}

API int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    int result = enter();
    return leave(result == SUCCESS ? copy_text(text, size, state.driver_version) : result);
}

/* The library's own version needs no nvmlInit. */
API int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    enter();
    return leave(copy_text(text, size, state.nvml_version));
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int result = enter();
    *version = (int)state.cuda_version;
    return leave(result);
}

API int nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size) {
    int result = enter();
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return leave(NOT_FOUND);
    if (!fgets(text, (int)size, file))
        *text = 0;
    text[strcspn(text, "\n")] = 0;
    fclose(file);
    return leave(result);
}

/* ---- finding a device: a GPU that fell off the bus is still counted, one that was unplugged is not */

API int nvmlDeviceGetCount_v2(unsigned *count) {
    int result = enter();
    *count = 0;
    for (int i = 0; result == SUCCESS && i < MAX_GPUS; i++)
        *count += state.gpus[i].used;
    return leave(result);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int result = enter();
    if (result != SUCCESS)
        return leave(result);
    for (Gpu *gpu = state.gpus; gpu < state.gpus + MAX_GPUS; gpu++) {
        if (!gpu->used || index-- > 0)
            continue;
        *handle = gpu;
        return leave(gpu->lost ? GPU_IS_LOST : SUCCESS);
    }
    return leave(INVALID_ARGUMENT);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int result = enter();
    if (result != SUCCESS)
        return leave(result);
    for (Gpu *gpu = state.gpus; gpu < state.gpus + MAX_GPUS; gpu++) {
        if (!gpu->used)
            continue;
        *handle = gpu;
        if (!strcmp(uuid, gpu->uuid))
            return leave(gpu->lost ? GPU_IS_LOST : SUCCESS);
        for (Slice *slice = gpu->slices; slice < gpu->slices + MAX_SLICES; slice++) {
            *handle = slice;
            if (slice->used && !strcmp(uuid, slice->uuid))
                return leave(SUCCESS);
        }
    }
    return leave(NOT_FOUND);
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    int result = enter();
    if (result != SUCCESS)
        return leave(result);
    for (Gpu *gpu = state.gpus; gpu < state.gpus + MAX_GPUS; gpu++) {
        char own[32];
        snprintf(own, sizeof own, "00000000:%02X:00.0", (unsigned)gpu->bus);
        *handle = gpu;
        if (gpu->used && !strcasecmp(own, bus_id))
            return leave(SUCCESS);
    }
    return leave(NOT_FOUND);
}

/* ---- what it is */

API int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    char name[2 * TEXT_SIZE];
    snprintf(name, sizeof name, "%s", device.gpu->name);
    if (device.slice) {
        long long gib = (device.slice->memory + (1LL << 29)) >> 30;
        snprintf(name, sizeof name, "%s MIG %lldg.%lldgb", device.gpu->name, device.slice->slices, gib);
    }
    return leave(copy_text(text, size, name));
}

API int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    return leave(copy_text(text, size, device.slice ? device.slice->uuid : device.gpu->uuid));
}

API int nvmlDeviceGetSerial(void *handle, char *text, unsigned size) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    return leave(*device.gpu->serial ? copy_text(text, size, device.gpu->serial) : NOT_SUPPORTED);
}

GETTER(nvmlDeviceGetIndex, unsigned, device.slice ? device.slice->index : device.gpu->index)
GETTER(nvmlDeviceGetMinorNumber, unsigned, device.gpu->minor)
GETTER(nvmlDeviceGetBrand, unsigned, 0)
GETTER(nvmlDeviceGetPersistenceMode, unsigned, device.gpu->persistence)
GETTER(nvmlDeviceGetComputeMode, unsigned, 0)

static bool is_model(const Gpu *gpu, const char *model) {
    return strstr(gpu->name, model) != NULL;
}

/* nvmlDeviceArchitecture_t: Ampere 7, Ada 8, Hopper 9 */
static int architecture_of(const Gpu *gpu) {
    if (is_model(gpu, "4090"))
        return 8;
    return is_model(gpu, "H100") || is_model(gpu, "H200") ? 9 : 7;
}

GETTER(nvmlDeviceGetArchitecture, unsigned, architecture_of(device.gpu))

API int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS) {
        int architecture = architecture_of(device.gpu);
        *major = architecture == 9 ? 9 : 8;
        *minor = architecture == 8 ? 9 : 0;
    }
    return leave(device.result);
}

typedef struct {
    uint64_t total, free, used;
} Memory;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} Memory_v2;

static bool runs_on(const Process *process, Device device) {
    if (process->gpu != device.gpu->index)
        return false;
    return !device.slice || process->gpu_instance == device.slice->gpu_instance;
}

static uint64_t memory_used(Device device) {
    uint64_t used = device.slice ? 0 : (uint64_t)device.gpu->memory_used;
    for (int i = 0; i < state.process_count; i++)
        if (runs_on(&state.processes[i], device))
            used += (uint64_t)state.processes[i].memory;
    return used;
}

API int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS) {
        memory->total = (uint64_t)(device.slice ? device.slice->memory : device.gpu->memory_total);
        memory->used = memory_used(device);
        memory->free = memory->total - memory->used;
    }
    return leave(device.result);
}

API int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory_v2 *memory) {
    Memory plain;
    int result = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (result == SUCCESS) {
        memory->total = plain.total;
        memory->used = plain.used;
        memory->reserved = 600ULL << 20;
        memory->free = plain.free - memory->reserved;
    }
    return result;
}

/* ---- slices */

#define HAS_MIG (device.gpu->ecc >= 0) /* a consumer GPU has neither */

API int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !HAS_MIG)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS) {
        *current = device.gpu->mig == 1;
        *pending = device.gpu->mig_pending < 0 ? *current : (unsigned)device.gpu->mig_pending;
    }
    return leave(device.result);
}

GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned, device.gpu->mig == 1 ? 7 : 0)

API int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    if (index >= MAX_SLICES || device.gpu->mig != 1 || !device.gpu->slices[index].used)
        return leave(NOT_FOUND);
    *slice = &device.gpu->slices[index];
    return leave(SUCCESS);
}

#define SLICE_GETTER(function, type, figure)                                                       \
    API int function(void *handle, type *value) {                                                  \
        Device device = enter_device(handle);                                                      \
        if (device.result == SUCCESS && !device.slice)                                             \
            device.result = INVALID_ARGUMENT;                                                      \
        if (device.result == SUCCESS)                                                              \
            *value = (type)(figure);                                                               \
        return leave(device.result);                                                               \
    }

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    uint64_t memory_mib;
} Attributes;

static Attributes attributes_of(const Slice *slice) {
    unsigned slices = (unsigned)slice->slices;
    return (Attributes){.multiprocessors = slices * 14, .gpu_slices = slices,
                        .compute_slices = slices, .memory_mib = (uint64_t)slice->memory >> 20};
}

SLICE_GETTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, Gpu *, device.gpu)
SLICE_GETTER(nvmlDeviceGetGpuInstanceId, unsigned, device.slice->gpu_instance)
SLICE_GETTER(nvmlDeviceGetComputeInstanceId, unsigned, device.slice->compute_instance)
SLICE_GETTER(nvmlDeviceGetAttributes_v2, Attributes, attributes_of(device.slice))
GETTER(nvmlDeviceIsMigDeviceHandle, unsigned, device.slice != NULL)

/* ---- processes */

typedef struct {
    unsigned pid;
    uint64_t memory;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static int list_processes(void *handle, unsigned *count, ProcessInfo *infos) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    unsigned room = infos ? *count : 0, found = 0;
    for (int i = 0; i < state.process_count; i++) {
        const Process *process = &state.processes[i];
        if (!runs_on(process, device))
            continue;
        if (found < room)
            infos[found] = (ProcessInfo){(unsigned)process->pid, (uint64_t)process->memory,
                                         (unsigned)process->gpu_instance,
                                         (unsigned)process->compute_instance};
        found++;
    }
    *count = found;
    return leave(found > room ? INSUFFICIENT_SIZE : SUCCESS);
}

#ifdef OLD_DRIVER
API int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, ProcessInfo *infos) {
    return list_processes(handle, count, infos);
}
#else
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    return list_processes(handle, count, infos);
}
#endif

API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos) {
    (void)infos;
    Device device = enter_device(handle);
    if (device.result == SUCCESS)
        *count = 0;
    return leave(device.result);
}
