/* How a GPU is: load, heat, power and the memory errors it counted. */
#include "state.h"

#include <time.h>

#define HAS_ECC (device.gpu->ecc >= 0)
#define COUNTS_ERRORS (device.gpu->ecc == 1)

typedef struct {
    unsigned gpu, memory;
} Utilization;

static Utilization utilization_of(const Gpu *gpu) {
    return (Utilization){(unsigned)gpu->utilization, (unsigned)gpu->memory_utilization};
}

/* As with a real one, neither a slice nor a GPU that is cut into slices tells its load. */
GETTER_WHERE(!device.slice && device.gpu->mig != 1, nvmlDeviceGetUtilizationRates, Utilization,
             utilization_of(device.gpu))

API int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && sensor != 0)
        device.result = INVALID_ARGUMENT;
    if (device.result == SUCCESS)
        *celsius = (unsigned)device.gpu->temperature;
    return leave(device.result);
}

API int nvmlDeviceGetTemperatureThreshold(void *handle, unsigned kind, unsigned *celsius) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS) /* shutdown, slowdown, and the rest */
        *celsius = kind == 0 ? 92 : kind == 1 ? 89 : 85;
    return leave(device.result);
}

GETTER(nvmlDeviceGetPowerUsage, unsigned, device.gpu->power)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, device.gpu->power_limit)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, device.gpu->power_limit)
GETTER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, time(NULL) * device.gpu->power / 1000)
GETTER(nvmlDeviceGetPerformanceState, unsigned, device.gpu->performance_state)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, device.gpu->throttle)
GETTER_WHERE(device.gpu->fan, nvmlDeviceGetFanSpeed, unsigned, device.gpu->fan)

API int nvmlDeviceGetClockInfo(void *handle, unsigned clock, unsigned *megahertz) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS)
        *megahertz = clock == 2 ? 1593 : 1410; /* 2 is the memory's */
    return leave(device.result);
}

API int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !HAS_ECC)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS)
        *current = *pending = (unsigned)device.gpu->ecc;
    return leave(device.result);
}

/* `type` 0 is corrected; `counter` 1 is since ever, 0 since the driver was loaded. */
API int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, uint64_t *errors) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !COUNTS_ERRORS)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS) {
        long long uncorrected =
            counter == 1 ? device.gpu->ecc_uncorrected_ever : device.gpu->ecc_uncorrected;
        *errors = (uint64_t)(type == 0 ? device.gpu->ecc_corrected : uncorrected);
    }
    return leave(device.result);
}

API int nvmlDeviceGetMemoryErrorCounter(void *handle, unsigned type, unsigned counter,
                                        unsigned location, uint64_t *errors) {
    (void)location;
    return nvmlDeviceGetTotalEccErrors(handle, type, counter, errors);
}

GETTER_WHERE(COUNTS_ERRORS, nvmlDeviceGetRetiredPagesPendingStatus, unsigned,
             device.gpu->retired_pending)

API int nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count, uint64_t *addresses) {
    (void)cause;
    (void)addresses;
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !COUNTS_ERRORS)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS)
        *count = 0;
    return leave(device.result);
}

API int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                                  unsigned *pending, unsigned *failed) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !COUNTS_ERRORS)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS) {
        *corrected = (unsigned)device.gpu->remap_corrected;
        *uncorrected = (unsigned)device.gpu->remap_uncorrected;
        *pending = (unsigned)device.gpu->remap_pending;
        *failed = (unsigned)device.gpu->remap_failed;
    }
    return leave(device.result);
}

#ifndef OLD_DRIVER
GETTER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, device.gpu->throttle)

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

API int nvmlDeviceGetTemperatureV(void *handle, Temperature *temperature) {
    unsigned celsius = 0;
    int result = nvmlDeviceGetTemperature(handle, temperature->sensor, &celsius);
    temperature->celsius = (int)celsius;
    return result;
}
#endif
