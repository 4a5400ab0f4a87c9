// Drives the stock Go client: go-client produce|consume|transact|ask|answer -namesrv … -topic … -group … -out FILE …
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options struct {
	namesrv, topic, group, out, expression, end, stop string
	accessKey, secretKey                              string
	sync, oneway, batch, count                        int
	quietMs, limitMs, timeoutMs, pauseMs, pollMs      int
}

func (o options) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.accessKey, SecretKey: o.secretKey}
}

// report is a file of JSON objects, one a line: what the test reads.
type report struct {
	lock sync.Mutex
	file *os.File
}

func (r *report) line(fields map[string]any) {
	text, err := json.Marshal(fields)
	check(err)
	r.lock.Lock()
	defer r.lock.Unlock()
	_, err = r.file.Write(append(text, '\n'))
	check(err)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(arguments []string) options {
	var o options
	flags := flag.NewFlagSet("go-client", flag.ExitOnError)
	flags.StringVar(&o.namesrv, "namesrv", "", "")
	flags.StringVar(&o.topic, "topic", "", "")
	flags.StringVar(&o.group, "group", "", "")
	flags.StringVar(&o.out, "out", "", "")
	flags.StringVar(&o.accessKey, "access-key", "", "signs as this user")
	flags.StringVar(&o.secretKey, "secret-key", "", "its password")
	flags.StringVar(&o.end, "end", "", "")
	flags.StringVar(&o.stop, "stop", "", "")
	flags.IntVar(&o.timeoutMs, "timeout-ms", 10000, "")
	flags.IntVar(&o.pauseMs, "pause-ms", 0, "")
	flags.IntVar(&o.pollMs, "poll-ms", 30000, "has no meaning to this client")
	flags.StringVar(&o.expression, "expression", "*", "")
	flags.IntVar(&o.sync, "sync", 0, "")
	flags.IntVar(&o.oneway, "oneway", 0, "")
	flags.IntVar(&o.batch, "batch", 0, "")
	flags.IntVar(&o.count, "count", 0, "")
	flags.IntVar(&o.quietMs, "quiet-ms", 2000, "")
	flags.IntVar(&o.limitMs, "limit-ms", 60000, "")
	check(flags.Parse(arguments))
	return o
}

func main() {
	rlog.SetLogLevel("fatal")
	o := parse(os.Args[2:])
	file, err := os.Create(o.out)
	check(err)
	switch os.Args[1] {
	case "produce":
		produce(o, &report{file: file})
	case "ask":
		ask(o, &report{file: file})
	case "answer":
		answer(o, &report{file: file})
	case "transact":
		transact(o, &report{file: file})
	default:
		consume(o, &report{file: file})
	}
	check(file.Close())
}
