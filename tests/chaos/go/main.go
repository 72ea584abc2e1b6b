// One worker of a consumer with acks, or a publisher, with unmodified nats.go; its events are lines of JSON.
//
//	chaos publish  URL SUBJECT
//	chaos consume  URL STREAM CONSUMER SEED BATCH   pull consumer, jetstream.Consume
//	chaos fetch    URL STREAM CONSUMER SEED BATCH   pull consumer, jetstream.Fetch
//	chaos messages URL STREAM CONSUMER SEED BATCH   pull consumer, jetstream.Messages
//	chaos push     URL STREAM CONSUMER SEED BATCH   member of queue group g, nats.QueueSubscribe
//	chaos pushed   URL STREAM CONSUMER SEED BATCH   member of queue group g, jetstream.PushConsumer
//
// Times are of CLOCK_MONOTONIC, as Python's time.monotonic. On SIGUSR1 a worker becomes calm: it acks all from then on.
// On SIGTERM a publisher ends once its last message is stored.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

const (
	wait    = 2 * time.Second
	pause   = 50 * time.Millisecond
	between = 10 * time.Millisecond // two messages of a publisher
	group   = "g"
)

type event struct {
	Event      string  `json:"event"`
	AtS        float64 `json:"at_s"`
	Value      string  `json:"value"`
	Deliveries uint64  `json:"deliveries,omitempty"`
}

var (
	out    = json.NewEncoder(os.Stdout)
	mutex  sync.Mutex // of `out` and `chance`
	chance *rand.Rand
	calm   atomic.Bool
)

func nowS() float64 {
	var at unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return float64(at.Sec) + float64(at.Nsec)/1e9
}

// Written at once: what a worker said before it is killed is known.
func say(name, value string, deliveries uint64) {
	mutex.Lock()
	defer mutex.Unlock()
	must(out.Encode(event{name, nowS(), value, deliveries}))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// What both APIs of nats.go have for a message.
type delivery struct {
	value      string
	deliveries uint64
	status     string
	ack        func() error
	doubleAck  func(context.Context) error
	nak        func() error
	nakLater   func(time.Duration) error
	inProgress func() error
}

func ofMsg(msg jetstream.Msg) delivery {
	one := delivery{value: string(msg.Data()), status: msg.Headers().Get("Status"), ack: msg.Ack,
		doubleAck: msg.DoubleAck, nak: msg.Nak, nakLater: msg.NakWithDelay, inProgress: msg.InProgress}
	if meta, err := msg.Metadata(); err == nil {
		one.deliveries = meta.NumDelivered
	}
	return one
}

func ofOldMsg(msg *nats.Msg) delivery {
	one := delivery{value: string(msg.Data), status: msg.Header.Get("Status"),
		ack:        func() error { return msg.Ack() },
		doubleAck:  func(ctx context.Context) error { return msg.AckSync(nats.Context(ctx)) },
		nak:        func() error { return msg.Nak() },
		nakLater:   func(delay time.Duration) error { return msg.NakWithDelay(delay) },
		inProgress: func() error { return msg.InProgress() }}
	if meta, err := msg.Metadata(); err == nil {
		one.deliveries = meta.NumDelivered
	}
	return one
}

func draw() float64 {
	mutex.Lock()
	defer mutex.Unlock()
	return chance.Float64()
}

// Settles on its own goroutine: a message must not wait in the client's buffer, where the time it came is not known.
func take(one delivery) {
	if one.status != "" {
		return
	}
	say("taken", one.value, one.deliveries)
	go settle(one)
}

func settle(one delivery) {
	what := draw()
	if calm.Load() {
		what = 0
	}
	var err error
	switch {
	case what < 0.5:
		say("acking", one.value, 0)
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		if err = one.doubleAck(ctx); err == nil {
			say("confirmed", one.value, 0)
		}
	case what < 0.7:
		say("acking", one.value, 0)
		err = one.ack()
	case what < 0.8:
		err = one.nak()
	case what < 0.85:
		err = one.nakLater(time.Duration(draw() * float64(time.Second)))
	case what < 0.9:
		err = one.inProgress()
	}
	if err != nil {
		say("failed", "settle: "+err.Error(), 0)
	}
}

func again(what string, err error) {
	if err != nil {
		say("failed", what+": "+err.Error(), 0)
	}
	time.Sleep(pause)
}

func publish(connection *nats.Conn, subject string) {
	var ending atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() { <-signals; ending.Store(true) }()
	js, err := jetstream.New(connection)
	must(err)
	for number := 0; !ending.Load(); number++ {
		value := strconv.Itoa(number)
		say("published", value, 0)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			_, err := js.Publish(ctx, subject, []byte(value), jetstream.WithMsgID("n"+value))
			cancel()
			if err == nil {
				break
			}
			again("publish", err)
		}
		say("stored", value, 0)
		time.Sleep(between)
	}
}

func pull(connection *nats.Conn, kind, stream, name string, batch int) error {
	js, err := jetstream.New(connection)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	consumer, err := js.Consumer(ctx, stream, name)
	if err != nil {
		return err
	}
	switch kind {
	case "consume":
		onError := jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			say("failed", "consume: "+err.Error(), 0)
		})
		running, err := consumer.Consume(func(msg jetstream.Msg) { take(ofMsg(msg)) },
			jetstream.PullMaxMessages(batch), jetstream.PullExpiry(5*time.Second), onError)
		if err != nil {
			return err
		}
		<-running.Closed()
	case "messages":
		messages, err := consumer.Messages(jetstream.PullMaxMessages(batch), jetstream.PullExpiry(5*time.Second))
		if err != nil {
			return err
		}
		defer messages.Stop()
		for {
			msg, err := messages.Next()
			if err != nil {
				return err
			}
			take(ofMsg(msg))
		}
	case "fetch":
		for {
			messages, err := consumer.Fetch(1+int(draw()*float64(batch)), jetstream.FetchMaxWait(wait))
			if err != nil {
				again("fetch", err)
				continue
			}
			for msg := range messages.Messages() {
				take(ofMsg(msg))
			}
			if err := messages.Error(); err != nil {
				again("fetch", err)
			}
		}
	}
	return nil
}

func push(connection *nats.Conn, stream, name string) error {
	js, err := connection.JetStream(nats.MaxWait(wait))
	must(err)
	_, err = js.QueueSubscribe("", group, func(msg *nats.Msg) { take(ofOldMsg(msg)) },
		nats.Bind(stream, name), nats.ManualAck())
	if err != nil {
		return err
	}
	select {}
}

func pushed(connection *nats.Conn, stream, name string) error {
	js, err := jetstream.New(connection)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	consumer, err := js.PushConsumer(ctx, stream, name)
	if err != nil {
		return err
	}
	running, err := consumer.Consume(func(msg jetstream.Msg) { take(ofMsg(msg)) })
	if err != nil {
		return err
	}
	<-running.Closed()
	return nil
}

func main() {
	kind, url := os.Args[1], os.Args[2]
	connection, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			say("failed", "connection: "+err.Error(), 0)
		}))
	must(err)
	if kind == "publish" {
		publish(connection, os.Args[3])
		return
	}
	stream, name := os.Args[3], os.Args[4]
	seed, err := strconv.ParseInt(os.Args[5], 10, 64)
	must(err)
	batch, err := strconv.Atoi(os.Args[6])
	must(err)
	chance = rand.New(rand.NewSource(seed))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() { <-signals; calm.Store(true) }()
	for {
		var err error
		switch kind {
		case "consume", "messages", "fetch":
			err = pull(connection, kind, stream, name, batch)
		case "push":
			err = push(connection, stream, name)
		case "pushed":
			err = pushed(connection, stream, name)
		default:
			must(fmt.Errorf("not a kind of worker: %s", kind))
		}
		again(kind, err)
	}
}
