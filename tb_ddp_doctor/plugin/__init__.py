"""The Diagnosis tab of TensorBoard."""
