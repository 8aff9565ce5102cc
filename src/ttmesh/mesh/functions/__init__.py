"""TT-NN's free functions on an open mesh: queues, trace capture, semaphores, memory reports, fabric, cluster, ranks."""
