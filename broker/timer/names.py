"""RocketMQ's names for timer messages (MessageConst, TimerMessageStore). Pure."""

TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_QUEUE_ID = 0

PROPERTY_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_DELIVER_MS = "TIMER_DELIVER_MS"
ASKING_PROPERTIES = (PROPERTY_DELAY_SEC, PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS)
"""By which a sender asks for a time; of several, the first one here counts."""
PROPERTY_OUT_MS = "TIMER_OUT_MS"
"""When the message is due: the broker's own, and on every message that waits or has waited."""
PROPERTY_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_RECALL_KEY = "TIMER_DEL_UNIQKEY"
"""Topic+UNIQ_KEY of the message of the same time that is not to be delivered."""
