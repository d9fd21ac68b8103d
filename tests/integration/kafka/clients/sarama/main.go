// Publish, consume in a group, commit and administer by Sarama, as a broker of each version.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type reader struct{ found chan string }

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		session.Commit()
		r.found <- string(message.Value)
	}
	return nil
}

func try(servers []string, version sarama.KafkaVersion) error {
	topic := "sarama-" + strings.ReplaceAll(version.String(), ".", "-")
	config := sarama.NewConfig()
	config.Version = version
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Producer.Return.Successes = true
	if version.IsAtLeast(sarama.V0_11_0_0) {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
		config.Producer.RequiredAcks = sarama.WaitForAll
	}
	admin, err := sarama.NewClusterAdmin(servers, config)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	defer admin.Close()
	if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	producer, err := sarama.NewSyncProducer(servers, config)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	for number := range 3 {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(number))})
		if err != nil || offset != int64(number) {
			return fmt.Errorf("send %d: offset %d, %w", number, offset, err)
		}
	}
	if err := producer.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	group, err := sarama.NewConsumerGroup(servers, topic, config)
	if err != nil {
		return fmt.Errorf("group: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	found, failed := make(chan string, 3), make(chan error, 1)
	go func() { failed <- group.Consume(ctx, []string{topic}, reader{found}) }()
	for number := range 3 {
		select {
		case value := <-found:
			if value != fmt.Sprint(number) {
				return fmt.Errorf("read %q instead of %d", value, number)
			}
		case err := <-failed:
			return fmt.Errorf("consume: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("consume: %w", ctx.Err())
		}
	}
	if err := group.Close(); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	offsets, err := admin.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}})
	if err != nil || offsets.GetBlock(topic, 0).Offset != 3 {
		return fmt.Errorf("offsets: %v, %w", offsets, err)
	}
	if _, err := admin.DescribeConsumerGroups([]string{topic}); err != nil {
		return fmt.Errorf("describe: %w", err)
	}
	if _, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic}); err != nil {
		return fmt.Errorf("configs: %w", err)
	}
	if err := admin.CreatePartitions(topic, 2, nil, false); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	if _, err := admin.DescribeTopics([]string{topic}); err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	if version.IsAtLeast(sarama.V1_1_0_0) {
		if err := admin.DeleteConsumerGroup(topic); err != nil {
			return fmt.Errorf("delete group: %w", err)
		}
	}
	if err := admin.DeleteTopic(topic); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

func main() {
	failures := 0
	for _, version := range sarama.SupportedVersions {
		if !version.IsAtLeast(sarama.V1_0_0_0) {
			continue
		}
		if err := try(os.Args[1:], version); err != nil {
			fmt.Println(version, err)
			failures++
		} else {
			fmt.Println(version, "ok")
		}
	}
	os.Exit(min(failures, 1))
}
