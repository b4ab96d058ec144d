"""Training loops: the Trainer, its settings, callbacks, checkpoints and mixed precision."""

from pyflame.training.callbacks import Callback, CSVLogger, EarlyStopping, LearningRateScheduler, ModelCheckpoint
from pyflame.training.checkpoints import latest_checkpoint
from pyflame.training.config import TrainerConfig
from pyflame.training.history import History
from pyflame.training.precision import GradScaler
from pyflame.training.progress import ProgressBar
from pyflame.training.pruning import PruningCallback
from pyflame.training.tensorboard import TensorBoardLogger
from pyflame.training.trainer import Trainer

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "GradScaler",
    "History",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgressBar",
    "PruningCallback",
    "TensorBoardLogger",
    "Trainer",
    "TrainerConfig",
    "latest_checkpoint",
]
