// Calls nats.go's JetStream against Penstock, and prints for each call what came of it, one line of JSON each.
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

	streams(ctx, js)
	consumers(ctx, js)
	buckets(ctx, js)
}

func outcome(call string, err error) {
	if err != nil {
		say(call, failure(err))
	} else {
		say(call, "yes")
	}
}

func check(is bool, text string) error {
	if is {
		return nil
	}
	return errors.New(text)
}

// Streams and their messages. Where no API answers, each call is tried on its own.
func streams(ctx context.Context, js jetstream.JetStream) {
	_, err := js.AccountInfo(ctx)
	outcome("js.AccountInfo", err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "new", Subjects: []string{"new.>"}})
	outcome("js.CreateStream", err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "work", Retention: jetstream.WorkQueuePolicy})
	outcome("js.CreateStream, a work queue", err)
	_ = js.DeleteStream(ctx, "work")
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "copy", Mirror: &jetstream.StreamSource{Name: "new"}})
	outcome("js.CreateStream, a mirror", err)
	stream, err := js.UpdateStream(ctx, jetstream.StreamConfig{Name: "new", Subjects: []string{"new.>"}, MaxMsgs: 5})
	outcome("js.UpdateStream", err)
	_, err = js.Stream(ctx, "orders")
	outcome("js.Stream", err)
	names := 0
	listed := js.StreamNames(ctx)
	for range listed.Name() {
		names++
	}
	if err = listed.Err(); err == nil {
		err = check(names == 2, "names: "+strconv.Itoa(names))
	}
	outcome("js.StreamNames", err)
	if stream == nil {
		outcome("stream.GetMsg, GetLastMsgForSubject", err)
		outcome("stream.DeleteMsg, SecureDeleteMsg", err)
		outcome("stream.Purge", err)
	} else {
		for number := range 4 {
			_, err = js.Publish(ctx, "new."+strconv.Itoa(number%2), []byte("x"))
			must(err)
		}
		got, err := stream.GetMsg(ctx, 2)
		if err == nil {
			err = check(got.Subject == "new.1", got.Subject)
		}
		if err == nil {
			got, err = stream.GetLastMsgForSubject(ctx, "new.0")
		}
		if err == nil {
			err = check(got.Sequence == 3, strconv.FormatUint(got.Sequence, 10))
		}
		outcome("stream.GetMsg, GetLastMsgForSubject", err)
		err = stream.DeleteMsg(ctx, 1)
		if err == nil {
			err = stream.SecureDeleteMsg(ctx, 2)
		}
		outcome("stream.DeleteMsg, SecureDeleteMsg", err)
		err = stream.Purge(ctx, jetstream.WithPurgeSubject("new.0"))
		if err == nil {
			err = stream.Purge(ctx)
		}
		outcome("stream.Purge", err)
	}
	outcome("js.DeleteStream", js.DeleteStream(ctx, "new"))
}

func consumers(ctx context.Context, js jetstream.JetStream) {
	_, err := js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{Durable: "mail"})
	outcome("js.CreateOrUpdateConsumer, durable", err)
	_, err = js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	outcome("js.CreateOrUpdateConsumer, with acks", err)
	consumer, err := js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err == nil {
		err = fetch(consumer, 8)
	}
	outcome("js.CreateOrUpdateConsumer without acks, Fetch", err)
	consumer, err = js.OrderedConsumer(ctx, "orders", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"orders.go"}})
	if err == nil {
		err = next(consumer)
	}
	outcome("js.OrderedConsumer, Next", err)
}

func fetch(consumer jetstream.Consumer, count int) error {
	batch, err := consumer.Fetch(count, jetstream.FetchMaxWait(10*time.Second))
	if err != nil {
		return err
	}
	found := 0
	for range batch.Messages() {
		found++
	}
	if batch.Error() != nil {
		return batch.Error()
	}
	return check(found == count, "messages: "+strconv.Itoa(found))
}

func next(consumer jetstream.Consumer) error {
	message, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
	if err != nil {
		return err
	}
	return check(string(message.Data()) == "1", string(message.Data()))
}

func buckets(ctx context.Context, js jetstream.JetStream) {
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b", History: 5})
	outcome("js.CreateKeyValue", err)
	if err == nil {
		err = keys(ctx, bucket)
	}
	outcome("kv.Put, Get, Update, Delete, Keys, History, Watch", err)
	store, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "b"})
	outcome("js.CreateObjectStore", err)
	if err == nil {
		_, err = store.PutBytes(ctx, "object", make([]byte, 300_000))
	}
	if err == nil {
		var data []byte
		if data, err = store.GetBytes(ctx, "object"); err == nil {
			err = check(len(data) == 300_000, "bytes: "+strconv.Itoa(len(data)))
		}
	}
	if err == nil {
		err = store.Delete(ctx, "object")
	}
	outcome("store.Put, Get, Delete", err)
}

func keys(ctx context.Context, bucket jetstream.KeyValue) error {
	revision, err := bucket.Put(ctx, "a", []byte("1"))
	if err != nil {
		return err
	}
	if _, err = bucket.Update(ctx, "a", []byte("2"), revision); err != nil {
		return err
	}
	if _, err = bucket.Update(ctx, "a", []byte("3"), revision); err == nil {
		return errors.New("an update of an old revision")
	}
	if _, err = bucket.Create(ctx, "b", []byte("1")); err != nil {
		return err
	}
	found, err := bucket.Get(ctx, "a")
	if err != nil || string(found.Value()) != "2" {
		return errors.Join(err, errors.New("another value"))
	}
	if err = bucket.Delete(ctx, "b"); err != nil {
		return err
	}
	names, err := bucket.Keys(ctx)
	if err != nil || len(names) != 1 {
		return errors.Join(err, errors.New("other keys"))
	}
	history, err := bucket.History(ctx, "a")
	if err != nil || len(history) != 2 {
		return errors.Join(err, errors.New("another history"))
	}
	watcher, err := bucket.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Stop() }()
	for entry := range watcher.Updates() {
		if entry == nil {
			return nil
		}
	}
	return errors.New("the watch ended")
}
