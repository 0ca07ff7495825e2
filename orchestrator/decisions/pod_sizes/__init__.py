"""Decides how large the pods of a tournament are whose incumbent's pod may grow. Pure.

first_pods.py    the first pod, for the founder
changes.py       replacing a pod by a larger or smaller one
resized_pods.py  the specification of such a pod
"""
