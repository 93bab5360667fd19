"""`wf.nn.functional`: functions of networks, by subject in the modules of this package."""

from wayfare.nn.functional.attention import *  # noqa: F403
from wayfare.nn.functional.distance import *  # noqa: F403
from wayfare.nn.functional.dropout import *  # noqa: F403
from wayfare.nn.functional.linear import *  # noqa: F403
from wayfare.nn.functional.loss import *  # noqa: F403
from wayfare.nn.functional.margin import *  # noqa: F403
from wayfare.nn.functional.norm import *  # noqa: F403
from wayfare.nn.functional.pad import *  # noqa: F403
from wayfare.nn.functional.shuffle import *  # noqa: F403
from wayfare.nn.functional.softmax import *  # noqa: F403
from wayfare.nn.functional.sparse import *  # noqa: F403
