/* A stand-in for libnvidia-ml.so.1: what all its files share.
 *
 * All that it answers comes from the text file that $NVML_SHIM_CONF names, read again whenever it
 * changes, so that a test can inject faults while the program under test runs:
 *
 *   sys driver=550.127.05 nvml=12.550.127.05 cuda=12040 [init_error=<code>] [hang_ms=<n>]
 *   gpu <index> uuid= minor= name= mem_total= mem_used= util= temp= power= plimit= ecc=1|0|-1 bus=<hex> numa=
 *               nvlink=<links> nvlink_down=<link> mig=0|1 mig_pending=0|1 throttle=<mask> fan= pstate= serial=
 *               ecc_corr= ecc_unc= ecc_unc_agg= remap_corr= remap_unc= remap_pending= remap_fail=
 *               retired_pending= lost=1 err=<code that every call on it returns>
 *   mig <gpu> idx= uuid= gi= ci= slices= mem=
 *   proc <gpu> pid= mem= [gi= ci=]
 *   xid <gpu> code= seq=         delivered once for each seq to the event sets
 *
 * Sizes are bytes, power is milliwatts, '_' in a name stands for a space; ecc=-1 is a GPU that has
 * none. Only the entry points that an agent needs exist: pynvml takes a missing one for an older
 * driver, which is why a second build, with OLD_DRIVER, leaves out the newer ones. */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* nvmlReturn_t */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIBRARY_MISMATCH = 18,
    UNKNOWN = 999,
};

enum { MAX_GPUS = 16, MAX_SLICES = 8, MAX_PROCESSES = 64, MAX_XIDS = 32, TEXT_SIZE = 96 };
#define NO_INSTANCE 0xffffffffu /* of a process that runs on a whole GPU */

typedef struct {
    bool used;
    char uuid[TEXT_SIZE];
    long long index, gpu_instance, compute_instance, slices, memory;
} Slice;

typedef struct {
    bool used;
    char uuid[TEXT_SIZE], name[TEXT_SIZE], serial[TEXT_SIZE];
    long long index, minor, bus, numa;
    long long memory_total, memory_used, utilization, memory_utilization;
    long long temperature, power, power_limit, fan, performance_state, persistence, throttle;
    long long ecc, ecc_corrected, ecc_uncorrected, ecc_uncorrected_ever;
    long long remap_corrected, remap_uncorrected, remap_pending, remap_failed, retired_pending;
    long long links, link_down, mig, mig_pending, lost, error;
    Slice slices[MAX_SLICES];
} Gpu;

typedef struct {
    long long gpu, pid, memory, gpu_instance, compute_instance;
} Process;

typedef struct {
    long long gpu, code, sequence;
} Xid;

typedef struct {
    char driver_version[TEXT_SIZE], nvml_version[TEXT_SIZE];
    long long cuda_version, init_error, hang_ms;
    Gpu gpus[MAX_GPUS];
    Process processes[MAX_PROCESSES];
    int process_count;
    Xid xids[MAX_XIDS];
    int xid_count;
} State;

/* Handles are addresses of its GPUs and slices: reading the file again changes values, never places. */
extern State state;

/* What a handle stands for; `slice` is NULL for a whole GPU, `result` says whether to go on. */
typedef struct {
    Gpu *gpu;
    Slice *slice;
    int result;
} Device;

/* An entry point enters, looks at the state, and leaves with its result: between the two it holds
 * the lock. `enter_device` also refuses what a lost, broken or unknown GPU refuses. */
int enter(void);
Device enter_device(void *handle);
int leave(int result);

/* Reads the file where it changed; for callers that hold the lock by `lock_state`. */
void lock_state(void);
void reload_state(void);
void unlock_state(void);

Device device_of(void *handle);
int copy_text(char *target, unsigned size, const char *text);

/* An entry point with one figure to give, and one that only some GPUs support. */
#define GETTER_WHERE(supported, function, type, figure)                                            \
    API int function(void *handle, type *value) {                                                  \
        Device device = enter_device(handle);                                                      \
        if (device.result == SUCCESS && !(supported))                                              \
            device.result = NOT_SUPPORTED;                                                         \
        if (device.result == SUCCESS)                                                              \
            *value = (type)(figure);                                                               \
        return leave(device.result);                                                               \
    }
#define GETTER(function, type, figure) GETTER_WHERE(true, function, type, figure)

#endif
