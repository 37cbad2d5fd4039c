# What an image brings that SDK v3's MPI driver needs, laid over this machine in the caller's own mount namespace
# (unshare --mount): seen by this process and its children only.
#   mpi_image.sh WORK_DIRECTORY SSHD_ROOT PROGRAM_DIRECTORY COMMAND...
set -eu
work=$1 sshd=$2 programs=$3
shift 3
cp -r "$sshd/usr" "$work/sshd" # the hosts see this directory, wherever the checkout lies
sshd=$work/sshd
mkdir -p "$work/etc" "$work/etc.work" "$work/sbin" "$work/sbin.work" "$work/home/.ssh"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$work/etc,workdir=$work/etc.work" /etc
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$work/sbin,workdir=$work/sbin.work" /usr/sbin
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd /etc/ssh
sed -i "s|^\(root:[^:]*:0:0:[^:]*\):[^:]*:|\1:$work/home:|" /etc/passwd
grep -q '^sshd:' /etc/passwd || echo "sshd:x:74:65534::/run/sshd:/usr/sbin/nologin" >>/etc/passwd
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
ssh-keygen -q -t ed25519 -N '' -f "$work/home/.ssh/id_ed25519"
cp "$work/home/.ssh/id_ed25519.pub" "$work/home/.ssh/authorized_keys"
cat >/etc/ssh/ssh_config <<END
Host *
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
END
cat >/etc/ssh/sshd_config <<END
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile $work/home/.ssh/authorized_keys
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
SetEnv PATH=$programs:/usr/local/bin:/usr/bin:/bin
END
# All hosts share the machine's addresses: each listens on its own.
cat >/usr/sbin/sshd <<END
#!/bin/sh
LD_LIBRARY_PATH=$sshd/lib/x86_64-linux-gnu exec $sshd/sbin/sshd -o "ListenAddress=\$(hostname)" "\$@"
END
chmod 755 /usr/sbin/sshd
export HOME="$work/home"
exec "$@"
