"""`wf.nn.functional`: functions of networks, by subject in the modules of this package."""

from wayfare.nn.functional.activation import *  # noqa: F403
from wayfare.nn.functional.attention import *  # noqa: F403
from wayfare.nn.functional.conv import *  # noqa: F403
from wayfare.nn.functional.ctc import *  # noqa: F403
from wayfare.nn.functional.distance import *  # noqa: F403
from wayfare.nn.functional.dropout import *  # noqa: F403
from wayfare.nn.functional.fractional import *  # noqa: F403
from wayfare.nn.functional.grid import *  # noqa: F403
from wayfare.nn.functional.linear import *  # noqa: F403
from wayfare.nn.functional.loss import *  # noqa: F403
from wayfare.nn.functional.margin import *  # noqa: F403
from wayfare.nn.functional.multi_head import *  # noqa: F403
from wayfare.nn.functional.norm import *  # noqa: F403
from wayfare.nn.functional.pad import *  # noqa: F403
from wayfare.nn.functional.pool import *  # noqa: F403
from wayfare.nn.functional.recurrent import *  # noqa: F403
from wayfare.nn.functional.regression import *  # noqa: F403
from wayfare.nn.functional.resize import *  # noqa: F403
from wayfare.nn.functional.shuffle import *  # noqa: F403
from wayfare.nn.functional.softmax import *  # noqa: F403
from wayfare.nn.functional.sparse import *  # noqa: F403
