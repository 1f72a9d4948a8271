"""Names of the metrics that Fairlead itself measures of a run, besides those that its program reports."""

# Utilisations are shares of what the run holds, from 0 to 1; the others are sums over all of its pods, except the
# temperature, which is that of the hottest device.
GPU = "system/gpu_utilization"
CPU = "system/cpu_utilization"
GPU_MEMORY = "system/gpu_memory_bytes"
MEMORY = "system/memory_bytes"
POWER = "system/gpu_power_watts"
TEMPERATURE = "system/gpu_temperature_celsius"
