// Publishes with nats.go to a stream of Penstock, and prints for each call what came of it, one line of JSON each.
//
//	go run . nats://127.0.0.1:4222
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type line struct {
	Call   string `json:"call"`
	Result string `json:"result"`
}

var out = json.NewEncoder(os.Stdout)

func say(call, result string) {
	if err := out.Encode(line{call, result}); err != nil {
		panic(err)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// What an ack or an error comes to: "yes", an error code, or "no responders".
func result(ack *jetstream.PubAck, err error, seq uint64, duplicate bool) string {
	if err != nil {
		return failure(err)
	}
	if ack.Stream != "orders" || ack.Sequence != seq || ack.Duplicate != duplicate {
		return "ack: " + ack.Stream + " " + strconv.FormatUint(ack.Sequence, 10)
	}
	return "yes"
}

func failure(err error) string {
	// First: nats.go says 10076 in JetStream's place where no stream is on the subject.
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return "no responders"
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return strconv.Itoa(int(api.ErrorCode))
	}
	return err.Error()
}

func main() {
	nc, err := nats.Connect(os.Args[1])
	must(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	ack, err := js.Publish(ctx, "orders.go", []byte("1"))
	say("js.Publish", result(ack, err, 1, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("2"), jetstream.WithMsgID("go-2"))
	say("WithMsgID", result(ack, err, 2, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("2"), jetstream.WithMsgID("go-2"))
	say("WithMsgID, again", result(ack, err, 2, true))
	ack, err = js.Publish(ctx, "orders.go", []byte("3"), jetstream.WithExpectLastMsgID("go-2"))
	say("WithExpectLastMsgID", result(ack, err, 3, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("x"), jetstream.WithExpectLastMsgID("go-1"))
	say("WithExpectLastMsgID, another one", result(ack, err, 0, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("4"), jetstream.WithExpectLastSequence(3))
	say("WithExpectLastSequence", result(ack, err, 4, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("x"), jetstream.WithExpectLastSequence(3))
	say("WithExpectLastSequence, another one", result(ack, err, 0, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("5"), jetstream.WithExpectLastSequencePerSubject(4))
	say("WithExpectLastSequencePerSubject", result(ack, err, 5, false))
	ack, err = js.Publish(ctx, "orders.go", []byte("6"), jetstream.WithExpectStream("orders"))
	say("WithExpectStream", result(ack, err, 6, false))
	future, err := js.PublishAsync("orders.go", []byte("7"))
	must(err)
	select {
	case ack = <-future.Ok():
		say("js.PublishAsync", result(ack, nil, 7, false))
	case err = <-future.Err():
		say("js.PublishAsync", failure(err))
	case <-ctx.Done():
		say("js.PublishAsync", "silence")
	}
	message := nats.NewMsg("orders.go")
	message.Header.Set("Of-Its-Own", "kept")
	ack, err = js.PublishMsg(ctx, message)
	say("js.PublishMsg", result(ack, err, 8, false))
	_, err = js.Publish(ctx, "nobody.go", []byte("x"), jetstream.WithRetryAttempts(0))
	say("js.Publish, no stream there", failure(err))

	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "new", Subjects: []string{"new.>"}})
	say("js.CreateStream", failure(err))
	_, err = js.Stream(ctx, "orders")
	say("js.Stream", failure(err))
	_, err = js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{Durable: "mail"})
	say("js.CreateOrUpdateConsumer", failure(err))
	_, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b"})
	say("js.CreateKeyValue", failure(err))
	_, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "b"})
	say("js.CreateObjectStore", failure(err))
}
