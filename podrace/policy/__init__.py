"""Acts with policies outside of a mesh: with numpy and ONNX Runtime, and without torch.

Builds an ONNX graph from a checkpoint, and runs it on observations of Gymnasium environments.
"""
