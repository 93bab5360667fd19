"""Neural networks: modules, layers, and the functions they are made of."""

from wayfare.nn import functional as functional
from wayfare.nn import init as init
from wayfare.nn import utils as utils
from wayfare.nn.activation import *  # noqa: F403
from wayfare.nn.attention import *  # noqa: F403
from wayfare.nn.cells import *  # noqa: F403
from wayfare.nn.containers import *  # noqa: F403
from wayfare.nn.conv import *  # noqa: F403
from wayfare.nn.distance import *  # noqa: F403
from wayfare.nn.dropout import *  # noqa: F403
from wayfare.nn.embedding import *  # noqa: F403
from wayfare.nn.linear import *  # noqa: F403
from wayfare.nn.loss import *  # noqa: F403
from wayfare.nn.loss_classes import *  # noqa: F403
from wayfare.nn.loss_margin import *  # noqa: F403
from wayfare.nn.module import *  # noqa: F403
from wayfare.nn.normalization import *  # noqa: F403
from wayfare.nn.padding import *  # noqa: F403
from wayfare.nn.parameter import *  # noqa: F403
from wayfare.nn.pooling import *  # noqa: F403
from wayfare.nn.recurrent import *  # noqa: F403
from wayfare.nn.reshaping import *  # noqa: F403
from wayfare.nn.summary import *  # noqa: F403
from wayfare.nn.transformer import *  # noqa: F403
from wayfare.nn.trees import *  # noqa: F403
