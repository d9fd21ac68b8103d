import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

/** Prints the count of a topic's records in windows of 10 s, as it grows: "start count". */
public class WindowCounts {
    public static void main(String[] arguments) throws Exception {
        Duration size = Duration.ofSeconds(10), kept = Duration.ofHours(1);
        Properties options = new Properties();
        options.put(StreamsConfig.APPLICATION_ID_CONFIG, "window-counts");
        options.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        options.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        options.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        options.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        options.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[1], Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(size, kept))
            // Without a changelog, which would be a compacted topic.
            .count(Materialized.<String, Long>as(Stores.inMemoryWindowStore("counts", kept.multipliedBy(2), size, false))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()).withLoggingDisabled())
            .toStream()
            .foreach((window, count) -> {
                System.out.println(window.window().start() + " " + count);
                System.out.flush();
            });
        new KafkaStreams(builder.build(), options).start();
    }
}
