package main

import (
	"fmt"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const word = "naïve ☕ 你好"

var tags = []string{"TagA", "TagB", "TagC"}

// sample builds message `number` of a kind by the rules of tests/integration/messages.py.
func sample(topic, kind string, number int) *primitive.Message {
	body := fmt.Sprintf("%s-%d: Grüße, 世界 🚀", kind, number)
	message := primitive.NewMessage(topic, []byte(body))
	message.WithTag(tags[number%len(tags)])
	message.WithKeys([]string{fmt.Sprintf("key-%s-%d", kind, number)})
	message.WithProperty("number", strconv.Itoa(number))
	message.WithProperty("word", word)
	return message
}
