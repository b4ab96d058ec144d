"""Other people's tools: ONNX, Weights & Biases, MLflow, Jupyter."""

from pyflame.integrations.jupyter import JupyterConfig, setup_jupyter
from pyflame.integrations.mlflow import MLflowCallback
from pyflame.integrations.onnx import (
    ONNXExportConfig,
    ONNXExporter,
    ONNXImporter,
    ONNXModel,
    export_onnx,
    import_onnx,
)
from pyflame.integrations.wandb import WandbCallback

__all__ = [
    "JupyterConfig",
    "MLflowCallback",
    "ONNXExportConfig",
    "ONNXExporter",
    "ONNXImporter",
    "ONNXModel",
    "WandbCallback",
    "export_onnx",
    "import_onnx",
    "setup_jupyter",
]
