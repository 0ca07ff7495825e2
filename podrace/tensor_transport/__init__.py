"""The planes: how tensors travel between the processes of a pod. Needs torch; services free of torch stay away."""
