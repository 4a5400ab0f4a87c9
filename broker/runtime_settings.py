"""Which keys of the configuration may change while a broker runs, and how such a change gets into force.

The settings are part of the replicated state: every node of the group takes them over when it applies their
record or loads its snapshot, and a new leader has them. They lie over what its own file says.
"""

import logging
from collections.abc import Mapping
from typing import Final

from broker.config import BrokerConfig, config_from

RUNTIME_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "enablePropertyFilter",
        "fileReservedTime",
        "filterSupportRetry",
        "groupsMax",
        "heldSendsMax",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "offsetResetMarksMax",
        "offsetsMax",
        "preferredLeaderId",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "stateSnapshotIntervalMs",
        "topicsMax",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
    }
)
"""Those that are read at each use, or taken over by who made something of them
(ReplicatedState.on_settings_changed). All others are read once, when what they rule is made.
"""

logger = logging.getLogger(__name__)


class FixedKeyError(ValueError):
    """The key is known, but cannot change while the broker runs; the text is a sentence for the operator."""


def check_settings(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raises FixedKeyError, and ConfigError for an unknown key or a value out of bounds."""
    _changed(config, settings)
    for key in settings:
        if key not in RUNTIME_KEYS:
            raise FixedKeyError(
                f"{key} is fixed while the broker runs: set it in the configuration file of each node; "
                f"what can change is {', '.join(sorted(RUNTIME_KEYS))}"
            )


def take_settings(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Put the settings into force. One this node cannot use is logged and left out: it may come from a
    later version, and a node that stops for it would be worse.
    """
    for key, value in settings.items():
        try:
            check_settings(config, {key: value})
        except ValueError as error:
            logger.warning("setting %s=%.64s is not used: %s", key, value, error)
            continue
        name = _FIELD_OF[key]
        # The model is frozen for its readers; this is the one place that changes it.
        config.__dict__[name] = getattr(_changed(config, {key: value}), name)


_FIELD_OF: Final = {field.alias: name for name, field in BrokerConfig.model_fields.items()}


def _changed(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    unset = {key: value for key, value in config.model_dump(by_alias=True).items() if value is not None}
    return config_from({**unset, **settings})
