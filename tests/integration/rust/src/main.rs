//! Drives RocketMQ's Rust client for gRPC: the actions and options of drivers/grpc_client.py that it has (no push
//! consumer, no recall, no change of the invisible time). It speaks plain text, as by default.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

const KINDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

type Failure = Box<dyn std::error::Error>;

struct Driver {
    options: HashMap<String, String>,
    out: Arc<Mutex<File>>,
}

fn write(out: &Mutex<File>, fields: Value) {
    writeln!(out.lock().unwrap(), "{fields}").unwrap();
}

fn seen(event: &str, message: &MessageView) -> Value {
    json!({
        "event": event, "body": String::from_utf8_lossy(message.body()), "id": message.message_id(),
        "topic": message.topic(), "tag": message.tag(), "keys": message.keys(), "properties": message.properties(),
        "group": message.message_group(), "attempt": message.delivery_attempt(),
    })
}

async fn awaited(file: &str) {
    let (path, end) = (Path::new(file), Instant::now() + LIMIT);
    while !path.exists() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Driver {
    async fn held(&self) {
        if let Some(file) = self.text("hold") {
            awaited(file).await;
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.text(name)
            .map_or(otherwise, |value| value.parse().unwrap())
    }

    fn topic(&self) -> &str {
        &self.options["topic"]
    }

    fn write(&self, fields: Value) {
        write(&self.out, fields);
    }

    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(&self.options["endpoint"]);
        option.set_long_polling_timeout(Duration::from_secs(8));
        if let (Some(access), Some(secret)) = (self.text("accessKey"), self.text("secretKey")) {
            option.set_access_key(access);
            option.set_secret_key(secret);
        }
        option
    }

    fn producing(&self) -> ProducerOption {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic()]);
        option.set_logging_format(LoggingFormat::Terminal);
        option
    }

    fn message(&self, number: usize) -> MessageBuilder {
        let mut builder = MessageBuilder::builder()
            .set_topic(self.topic())
            .set_body(number.to_string().into_bytes())
            .set_keys(vec![format!("key{number}")])
            .set_properties(HashMap::from([("number", number.to_string())]));
        if let Some(tag) = self.text("tag") {
            builder = builder.set_tag(tag);
        }
        match self.text("kind") {
            Some("fifo") => builder.set_message_group(format!("group{}", number % KINDS)),
            Some("delay") => {
                let due = SystemTime::now() + Duration::from_millis(self.number("delayMs", 0));
                builder.set_delivery_timestamp(due.duration_since(UNIX_EPOCH).unwrap().as_secs() as i64)
            }
            _ => builder,
        }
    }

    async fn send(&self) -> Result<(), Failure> {
        let mut producer = Producer::new(self.producing(), self.client())?;
        producer.start().await?;
        for number in 0..self.number("count", 0) as usize {
            self.send_one(&producer, number).await?;
            tokio::time::sleep(Duration::from_millis(self.number("pauseMs", 0))).await;
        }
        producer.shutdown().await?;
        Ok(())
    }

    async fn send_one(&self, producer: &Producer, number: usize) -> Result<(), Failure> {
        for attempt in 0..self.number("tries", 20) {
            match producer.send(self.message(number).build()?).await {
                Ok(receipt) => {
                    let body = number.to_string();
                    self.write(json!({"event": "sent", "body": body, "id": receipt.message_id()}));
                    return Ok(());
                }
                Err(error) => {
                    let (body, error) = (number.to_string(), error.to_string());
                    self.write(json!({"event": "failed", "body": body, "attempt": attempt, "error": error}));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(())
    }

    fn subscription(&self) -> FilterExpression {
        match self.text("sql") {
            Some(sql) => FilterExpression::new(FilterType::Sql, sql),
            None => FilterExpression::new(FilterType::Tag, self.text("filter").unwrap_or("*")),
        }
    }

    async fn simple(&self) -> Result<(), Failure> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(&self.options["group"]);
        option.set_topics(vec![self.topic()]);
        option.set_logging_format(LoggingFormat::Terminal);
        let mut consumer = SimpleConsumer::new(option, self.client())?;
        consumer.start().await?;
        self.write(json!({"event": "ready"}));
        let invisible = Duration::from_secs(self.number("invisibleS", 15));
        let (mut left, mut taken) = (self.number("count", 0) as i64, HashSet::new());
        let end = Instant::now() + LIMIT;
        while left > 0 && Instant::now() < end {
            match consumer
                .receive_with(self.topic(), &self.subscription(), 16, invisible)
                .await
            {
                Ok(messages) => {
                    for message in messages {
                        self.write(seen("received", &message));
                        self.held().await;
                        consumer.ack(&message).await?;
                        if taken.insert(message.body().to_vec()) || self.text("distinct").is_none()
                        {
                            left -= 1;
                        }
                    }
                }
                Err(error) => {
                    self.write(json!({"event": "failed", "error": error.to_string()}));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        consumer.shutdown().await?;
        Ok(())
    }

    async fn transact(&self) -> Result<(), Failure> {
        let out = self.out.clone();
        let answer = move |_: String, message: MessageView| {
            write(&out, seen("checked", &message));
            match String::from_utf8_lossy(message.body()).parse::<usize>() {
                Ok(number) if number % KINDS == 2 => TransactionResolution::COMMIT,
                _ => TransactionResolution::UNKNOWN,
            }
        };
        let mut producer =
            Producer::new_transaction_producer(self.producing(), self.client(), Box::new(answer))?;
        producer.start().await?;
        let mut transactions = Vec::new();
        for number in 0..self.number("count", 0) as usize {
            let message = self.message(number).enable_transaction().build()?;
            let transaction = producer.send_transaction_message(message).await?;
            let body = number.to_string();
            self.write(json!({"event": "prepared", "body": body, "id": transaction.message_id()}));
            transactions.push(transaction);
        }
        self.held().await;
        for (number, transaction) in transactions.into_iter().enumerate() {
            match number % KINDS {
                0 => transaction.commit().await?,
                1 => transaction.rollback().await?,
                _ => (),
            }
        }
        awaited(&self.options["end"]).await;
        producer.shutdown().await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let action = arguments.next().ok_or("which action?")?;
    let options: HashMap<String, String> = arguments
        .filter_map(|pair| {
            pair.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect();
    let out = Arc::new(Mutex::new(File::create(&options["out"])?));
    let driver = Driver { options, out };
    match action.as_str() {
        "send" => driver.send().await?,
        "simple" => driver.simple().await?,
        "transact" => driver.transact().await?,
        _ => return Err(format!("this client has no {action}").into()),
    }
    driver.write(json!({"event": "end"}));
    Ok(())
}
